-- Reserves what a request may use: `_charge` of `state.py`.

local id, holder, quantities = command.id, command.holder, command.quantities
local prompt, wanted, least =
  command.prompt_tokens, command.output_tokens, command.least_output_tokens

call('ZADD', PREFIX .. 'leases', now + LEASE_MS, holder)  -- first: the caller is alive
reclaim()
local key = PREFIX .. 'r:' .. id
local old, withdrawn = unpack(call('MGET', key, PREFIX .. 'gone:' .. id))
if withdrawn then return pack({type = 'withdrawn'}) end
local reservation = old and reservation_of(unpack_(old)) or reservation_of(command, {})
local reserved, scopes = reservation.amounts, reservation.scopes
local began = old and reservation.parts[1].second or this_second

-- The counters of each scope.
local counters_of, budgets, unseeded = {}, {}, {}
for index, scope in ipairs(scopes) do
  local counters = open_counters(scope)
  for _, period in ipairs({'day', 'month'}) do
    local found = budget_period(scope, period, began)
    if found then
      local budget = open_budget(found)
      if budget then budgets[#budgets + 1] = budget else unseeded[#unseeded + 1] = found end
      counters[period] = budget
    end
  end
  counters_of[index] = counters
end
if #unseeded > 0 then return pack({type = 'unseeded', budgets = unseeded}) end

-- Budgets due for comparison with the ledger. Each is returned to only one caller, which does it.
local due = {}
for _, budget in ipairs(budgets) do
  if budget.due <= now then
    due[#due + 1] = budget.period
    call('HSET', budget.key, 'due', now + REFRESH_MS)
  end
end

local function cost_with(output)
  -- The cost that this charge adds to the reservation.
  return cost(reservation.rate, reserved.prompt_tokens + prompt, 0, reserved.output_tokens + output)
    - reservation.cost
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

local function room_for(measure, left)
  -- Returns how many output tokens the rest of a limit allows (below 0: not even the prompt), and
  -- the least amount that the charge needs of it.
  if measure == 'cost' then return affordable(left), cost_with(least) end
  if measure == 'output_tokens' then return left, least end
  if measure == 'tokens' then return left - prompt, prompt + least end
  local asked = measure == 'prompt_tokens' and prompt or quantities[measure] or 0
  return (asked == 0 or asked <= left) and math.huge or -1, asked
end

local granted, exceeded = wanted, {}
for index, scope in ipairs(scopes) do
  for _, name in ipairs(KINDS) do
    local limit = scope.limits[name]
    if limit then
      local used = used_of(name, counters_of[index])
      local room, asked = room_for(MEASURE_OF[name], limit - used)
      granted = min(granted, room)
      if room < least then
        exceeded[#exceeded + 1] = {
          scope = index, kind = name, limit = limit, used = used, asked = asked,
        }
      end
    end
  end
end

-- Granted ----------------------------------------------------------------------------------------

local function with_part(parts, new)
  -- Appends a part. Parts that have left every window are merged into the first one.
  local joined = {}
  for n, part in ipairs(parts) do
    if n == 1 or part.second > this_second - GONE_S then
      joined[#joined + 1] = part
    else
      local sum = joined[1].amounts
      for measure, amount in pairs(part.amounts) do sum[measure] = (sum[measure] or 0) + amount end
    end
  end
  joined[#joined + 1] = new
  return joined
end

if #exceeded == 0 then
  local left, amounts = {}, with_tokens(quantities, prompt, granted)
  for index, scope in ipairs(scopes) do
    local window = counters_of[index].window
    if window then
      for _, name in ipairs(IN_MINUTE) do
        if scope.limits[name] then
          local measure = MEASURE_OF[name]
          local amount = measure == 'tokens' and prompt + granted or amounts[measure] or 0
          count(window, measure, window.second, amount)
        end
      end
      save_window(window)
      add_left(left, scope, window)
    end
    if limits_streams(scope) and not old then call('HINCRBY', PREFIX .. 'streams', scope.id, 1) end
  end
  for _, budget in ipairs(budgets) do
    call('HSET', budget.key, 'reserved_tokens', budget.reserved_tokens + prompt + granted,
      'reserved_cost', budget.reserved_cost + cost_with(granted))
  end
  local parts = with_part(reservation.parts, {second = this_second, amounts = amounts})
  local made = old and old:sub(1, (cmsgpack.unpack_one(old))) or ARGV[1]
  call('SET', key, made .. pack(parts))  -- no expiry, else it may be evicted; leases end it
  call('SADD', PREFIX .. 'held:' .. reservation.holder, id)
  return pack({type = 'granted', output_tokens = granted, left = left, due = due})
end

-- Refused ----------------------------------------------------------------------------------------

local function end_of(period)
  if period.period == 'day' then return period.start + DAY_S end
  return month_start(period.start + 31 * DAY_S)
end

local function leaves_at(window, measure, amount)
  local buckets, seconds = packed_buckets(window, window.second - WINDOW_S, window.second)
  for n, packed in ipairs(buckets) do
    if packed then amount = amount - (unpack_(packed)[measure] or 0) end
    if amount <= 0 then return seconds[n] + GONE_S end
  end
end

local function wait_of(each)
  -- Milliseconds until there is room if nothing else is reserved, math.huge if there never will be;
  -- for a budget also the second at which it renews.
  local counters, window = counters_of[each.scope], WINDOW_OF[each.kind]
  if BUDGETS[window] then
    local renews_at = end_of(counters[window].period)
    return max(0, renews_at * 1000 - now), renews_at
  end
  if each.asked > each.limit then return math.huge end
  if window == 'concurrent' then return STREAM_WAIT_MS end
  local over = each.used + each.asked - each.limit
  return leaves_at(counters.window, MEASURE_OF[each.kind], over) * 1000 - now
end

local longest, refusal = -1, nil
for _, each in ipairs(exceeded) do
  local wait, renews_at = wait_of(each)
  if wait > longest then
    longest = wait
    refusal = {
      type = 'refused', scope = each.scope - 1, kind = each.kind, used = each.used,
      requested = each.asked, wait_ms = wait < math.huge and wait or nil, renews_at = renews_at,
      due = due,
    }
  end
end
return pack(refusal)
