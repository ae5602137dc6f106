-- Reserving: `_charge` of `book.py`.

local _, id, holder, _, _, requests, prompt, wanted, least = unpack(command, 1, 9)

call('ZADD', PREFIX .. 'leases', now + LEASE_MS, holder)  -- first: whoever asks is not dead
reclaim()
local key = PREFIX .. 'r:' .. id
local old, withdrawn = unpack(call('MGET', key, PREFIX .. 'gone:' .. id))
if withdrawn then return answer('withdrawn') end
local record = old and record_of(unpack_(old)) or record_of(command, {})
local began = old and record.parts[1][1] or this_second

-- What is counted in each scope.
local places, purses, unseeded = {}, {}, {}
for index, scope in ipairs(record.scopes) do
  local place = open_counted(scope)
  for i = 7, 8 do
    if scope[i] or scope[i + 2] then
      local budget = budget_of(scope[1], i, began)
      local purse = open_purse(budget)
      if purse then purses[#purses + 1] = purse else unseeded[#unseeded + 1] = budget end
      place[i], place[i + 2] = purse, purse
    end
  end
  places[index] = place
end
if #unseeded > 0 then return answer('unseeded', unseeded) end

-- Budgets to be compared with the ledger again: each is named once, to one who will do it.
local due = {}
for _, purse in ipairs(purses) do
  if purse.due <= now then
    due[#due + 1] = purse.budget
    call('HSET', purse.key, 'due', now + REFRESH_MS)
  end
end

local function cost_with(output)
  -- What it adds to that of the record.
  return cost(record.rate, record.prompt + prompt, 0, record.output + output) - record.cost
end

local function affordable(money)
  if cost_with(wanted) <= money then return wanted end
  local enough, too_many = -1, wanted
  while too_many - enough > 1 do
    local middle = floor((enough + too_many) / 2)
    if cost_with(middle) <= money then enough = middle else too_many = middle end
  end
  return enough
end

local function measure(i, left)
  -- How many output tokens the rest of this limit allows, below 0 not even the prompt; and what is
  -- asked of it at the least.
  if i > 8 then return affordable(left), cost_with(least) end
  if i == 5 then return left, least end
  if i == 3 or i > 6 then return left - prompt, prompt + least end
  local asked = i == 4 and prompt or requests
  return (asked == 0 or asked <= left) and math.huge or -1, asked
end

local granted, full = wanted, {}
for index, scope in ipairs(record.scopes) do
  for i = 2, 10 do
    if scope[i] then
      local used = used_of(i, places[index])
      local room, asked = measure(i, scope[i] - used)
      granted = min(granted, room)
      if room < least then full[#full + 1] = {index = index, i = i, used = used, asked = asked} end
    end
  end
end

-- There is room ----------------------------------------------------------------------------------

local function with_part(parts, new)
  -- Those that no window holds any longer join the first.
  local joined = {}
  for n, part in ipairs(parts) do
    if n == 1 or part[1] > this_second - GONE_S then
      joined[#joined + 1] = part
    else
      for i = 2, 4 do joined[1][i] = joined[1][i] + part[i] end
    end
  end
  joined[#joined + 1] = new
  return joined
end

if #full == 0 then
  local left, amounts = {}, {nil, requests, prompt + granted, prompt, granted}
  for index, scope in ipairs(record.scopes) do
    local window = places[index].window
    if window then
      for i = 2, 5 do
        if scope[i] then count(window, i, window.sum[1], amounts[i]) end
      end
      save_window(window)
      left_of(scope, window, left)
    end
    if scope[6] and not old then call('HINCRBY', PREFIX .. 'streams', scope[1], 1) end
  end
  for _, purse in ipairs(purses) do
    call('HSET', purse.key, 'reserved_tokens', purse.reserved_tokens + prompt + granted,
      'reserved_cost', purse.reserved_cost + cost_with(granted))
  end
  local parts = with_part(record.parts, {this_second, requests, prompt, granted})
  local made = old and old:sub(1, (cmsgpack.unpack_one(old))) or ARGV[1]
  call('SET', key, made .. pack(parts))  -- for ever: leases end it, and what expires may be evicted
  call('SADD', PREFIX .. 'held:' .. record.holder, id)
  return answer('granted', granted, left, due)
end

-- There is none ----------------------------------------------------------------------------------

local function end_of(budget)
  if budget[2] == 'day' then return budget[3] + DAY_S end
  return month_start(budget[3] + 31 * DAY_S)
end

local function leaves_at(window, i, amount)
  local buckets, seconds = packed_buckets(window, window.sum[1] - WINDOW_S, window.sum[1])
  for n, packed in ipairs(buckets) do
    if packed then amount = amount - select(i, unpack_(packed)) end
    if amount <= 0 then return seconds[n] + GONE_S end
  end
end

local function wait_of(each)
  -- Until there is room, if nobody else comes; math.huge where there never will be.
  local i, place, limit = each.i, places[each.index], record.scopes[each.index][each.i]
  if i > 6 then
    local renews_at = end_of(place[i].budget)
    return max(0, renews_at * 1000 - now), renews_at
  end
  if each.asked > limit then return math.huge end
  if i == 6 then return STREAM_WAIT_MS end
  return leaves_at(place.window, i, each.used + each.asked - limit) * 1000 - now
end

local longest, refusal = -1, nil
for _, each in ipairs(full) do
  local wait, renews_at = wait_of(each)
  if wait > longest then
    longest = wait
    refusal = answer('refused', each.index - 1, NAMES[each.i], each.used, each.asked,
      wait < math.huge and wait or nil, renews_at, due)
  end
end
return refusal
