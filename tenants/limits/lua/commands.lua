-- The commands that do not concern one request.

if command.type == 'renew' then
  call('ZADD', PREFIX .. 'leases', now + command.lease_ms, command.holder)
  reclaim()
  return pack({type = 'done'})
end

if command.type == 'holds' then
  return pack({type = 'ids', ids = call('SMEMBERS', PREFIX .. 'held:' .. command.holder)})
end

if command.type == 'seed' then
  local tokens, spent = command.tokens, command.cost
  local budget, key, rest = open_budget(command.budget), budget_key(command.budget), 0
  if not budget then
    call('HSET', key, 'reserved_tokens', 0, 'reserved_cost', 0)
  elseif call('HGET', key, 'estimated') ~= '1' then
    tokens = max(budget.tokens, tokens)
    if budget.cost >= spent then spent, rest = budget.cost, budget.rest end
  end
  call('HSET', key, 'tokens', tokens, 'cost', spent, 'rest', rest, 'due', now + REFRESH_MS,
    'estimated', 0)
  call('EXPIRE', key, 40 * DAY_S)  -- longer than a month
  return pack({type = 'done'})
end

local function open_counters(scope)
  -- The counters of a scope for which it has limits, except budgets.
  local counters = {}
  for _, name in ipairs(IN_MINUTE) do
    if scope.limits[name] then
      counters.window = open_window(scope.id, this_second)
      break
    end
  end
  if limits_streams(scope) then
    counters.streams = tonumber(call('HGET', PREFIX .. 'streams', scope.id)) or 0
  end
  return counters
end

local function used_of(name, counters)
  local window, measure = WINDOW_OF[name], MEASURE_OF[name]
  if window == 'minute' then return counters.window.sum[measure] or 0 end
  if window == 'concurrent' then return counters.streams end
  local budget = counters[window]
  if measure == 'cost' then
    return budget.cost + (budget.rest > 0 and 1 or 0) + budget.reserved_cost
  end
  return budget.tokens + budget.reserved_tokens
end

local function empty_at(window, measure)
  local at = window.second
  if (window.sum[measure] or 0) == 0 then return at end
  if (bucket_at(window, at)[measure] or 0) > 0 then return at + GONE_S end
  local buckets, seconds = packed_buckets(window, at - WINDOW_S, at - 1)
  for n = #seconds, 1, -1 do
    if buckets[n] and (unpack_(buckets[n])[measure] or 0) > 0 then return seconds[n] + GONE_S end
  end
end

local function add_left(left, scope, window)
  for _, name in ipairs(SHOWN) do
    local limit, measure = scope.limits[name], MEASURE_OF[name]
    if limit then
      left[#left + 1] = {
        kind = name, limit = limit, remaining = max(0, limit - (window.sum[measure] or 0)),
        reset_ms = max(0, empty_at(window, measure) * 1000 - now),
      }
    end
  end
end

if command.type == 'look' then
  local left = {}
  for _, scope in ipairs(command.scopes) do add_left(left, scope, open_counters(scope).window) end
  return pack({type = 'rooms', left = left})
end

if command.type == 'count' then
  local scope, used = command.scope, {}
  local counters = open_counters(scope)
  for _, name in ipairs(KINDS) do
    if scope.limits[name] and not BUDGETS[WINDOW_OF[name]] then
      used[#used + 1] = {kind = name, amount = used_of(name, counters)}
    end
  end
  return pack({type = 'counts', used = used})
end

