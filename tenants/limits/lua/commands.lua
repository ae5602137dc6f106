-- All commands but those of a request.

if name == 'renew' then
  local holder, lease_ms = command[2], command[3]
  call('ZADD', PREFIX .. 'leases', now + lease_ms, holder)
  reclaim()
  return answer('done')
end

if name == 'holds' then
  return answer('ids', call('SMEMBERS', PREFIX .. 'held:' .. command[2]))
end

if name == 'seed' then
  local budget, tokens, spent = command[2], command[3], command[4]
  local purse, key, rest = open_purse(budget), purse_key(budget), 0
  if not purse then
    call('HSET', key, 'reserved_tokens', 0, 'reserved_cost', 0)
  elseif call('HGET', key, 'estimated') ~= '1' then
    tokens = max(purse.tokens, tokens)
    if purse.cost >= spent then spent, rest = purse.cost, purse.rest end
  end
  call('HSET', key, 'tokens', tokens, 'cost', spent, 'rest', rest, 'due', now + REFRESH_MS,
    'estimated', 0)
  call('EXPIRE', key, 40 * DAY_S)  -- longer than a month
  return answer('done')
end

local NAMES = {
  'counters', 'requests_per_minute', 'tokens_per_minute', 'prompt_tokens_per_minute',
  'output_tokens_per_minute', 'concurrent_streams', 'tokens_per_day', 'tokens_per_month',
  'cost_per_day', 'cost_per_month',
}

local function open_counted(scope)
  local place = {}
  if scope[2] or scope[3] or scope[4] or scope[5] then
    place.window = open_window(scope[1], this_second)
  end
  if scope[6] then place.streams = tonumber(call('HGET', PREFIX .. 'streams', scope[1])) or 0 end
  return place
end

local function used_of(i, place)
  if i < 6 then return place.window.sum[i] end
  if i == 6 then return place.streams end
  local purse = place[i]
  if i > 8 then return purse.cost + (purse.rest > 0 and 1 or 0) + purse.reserved_cost end
  return purse.tokens + purse.reserved_tokens
end

local function empty_at(window, i)
  local at = window.sum[1]
  if window.sum[i] == 0 then return at end
  if bucket_at(window, at)[i] > 0 then return at + GONE_S end
  local buckets, seconds = packed_buckets(window, at - WINDOW_S, at - 1)
  for n = #seconds, 1, -1 do
    if buckets[n] and select(i, unpack_(buckets[n])) > 0 then return seconds[n] + GONE_S end
  end
end

local function left_of(scope, window, left)
  for i = 2, 3 do
    if scope[i] then
      local reset = max(0, empty_at(window, i) * 1000 - now)
      left[#left + 1] = {NAMES[i], scope[i], max(0, scope[i] - window.sum[i]), reset}
    end
  end
end

if name == 'look' then
  local left = {}
  for _, scope in ipairs(command[2]) do
    if scope[2] or scope[3] then left_of(scope, open_window(scope[1], this_second), left) end
  end
  return answer('rooms', left)
end

if name == 'count' then
  local scope, used = command[2], {}
  local place = open_counted(scope)
  for i = 2, 6 do
    if scope[i] then used[#used + 1] = {NAMES[i], used_of(i, place)} end
  end
  return answer('counts', used)
end

