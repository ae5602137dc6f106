-- Reservations and how they end: `reservation.py`.

local function reservation_of(charge, parts)
  -- A part is a second and the amounts reserved in it, by measure. The reservation began in the
  -- second of the first part.
  local amounts = {prompt_tokens = 0, output_tokens = 0}
  for _, part in ipairs(parts) do
    for measure, amount in pairs(part.amounts) do
      amounts[measure] = (amounts[measure] or 0) + amount
    end
  end
  return {
    holder = charge.holder, scopes = charge.scopes, rate = charge.rate, parts = parts,
    amounts = amounts, cost = cost(charge.rate, amounts.prompt_tokens, 0, amounts.output_tokens),
  }
end

local function load(id)
  local packed = call('GET', PREFIX .. 'r:' .. id)
  return packed and reservation_of(unpack_(packed))
end

local function replace(window, measure, parts, reserved, unused)
  -- Reduces what a window counts of a reservation by `unused`, in the newest parts first.
  if unused < 0 then return count(window, measure, window.second, -unused) end
  for n = #parts, 1, -1 do
    if unused == 0 then return end
    local back = min(parts[n].amounts[reserved] or 0, unused)
    give_back(window, measure, parts[n].second, back)
    unused = unused - back
  end
end

local function unused_of(measure, reservation, outcome)
  -- By how much to reduce the count: an amount without output tokens, and one of output tokens.
  local reserved, used = reservation.amounts, outcome.amounts
  if measure == 'tokens' then
    return reserved.prompt_tokens - used.prompt_tokens, reserved.output_tokens - used.output_tokens
  elseif measure == 'prompt_tokens' then
    return reserved.prompt_tokens - outcome.uncached, 0
  end
  return (reserved[measure] or 0) - (used[measure] or 0), 0
end

local function correct(scope, reservation, outcome)
  -- Replaces the reserved amounts in the windows of a scope by those of the outcome.
  local window, parts = nil, reservation.parts
  for _, name in ipairs(IN_MINUTE) do
    if scope.limits[name] then
      local measure = MEASURE_OF[name]
      local unused, of_output = unused_of(measure, reservation, outcome)
      if unused ~= 0 or of_output ~= 0 then
        window = window or open_window(scope.id, parts[#parts].second)
        local reserved = measure == 'tokens' and 'prompt_tokens' or measure
        replace(window, measure, parts, reserved, unused)
        replace(window, measure, parts, 'output_tokens', of_output)
      end
    end
  end
  if window then save_window(window) end
end

local function spend(period, reservation, outcome)
  local budget = open_budget(period)
  if not budget then return end
  local reserved, used = reservation.amounts, outcome.amounts
  local rest = budget.rest + outcome.rest
  call('HSET', budget.key,
    'tokens', budget.tokens + used.prompt_tokens + used.output_tokens,
    'cost', budget.cost + outcome.cost + floor(rest / MICRO),
    'rest', rest % MICRO,
    'reserved_tokens',
    max(0, budget.reserved_tokens - reserved.prompt_tokens - reserved.output_tokens),
    'reserved_cost', max(0, budget.reserved_cost - reservation.cost))
  if outcome.estimated then call('HSET', budget.key, 'estimated', 1) end
  if outcome.doubted then call('HSET', budget.key, 'due', 0) end
end

local function limits_streams(scope)
  for _, name in ipairs(CONCURRENT) do
    if scope.limits[name] then return true end
  end
end

local function finish(id, reservation, outcome)
  call('DEL', PREFIX .. 'r:' .. id, PREFIX .. 'report:' .. id)
  call('SREM', PREFIX .. 'held:' .. reservation.holder, id)
  for _, scope in ipairs(reservation.scopes) do
    correct(scope, reservation, outcome)
    if limits_streams(scope) and call('HINCRBY', PREFIX .. 'streams', scope.id, -1) <= 0 then
      call('HDEL', PREFIX .. 'streams', scope.id)
    end
    for period in pairs(BUDGETS) do
      local found = budget_period(scope, period, reservation.parts[1].second)
      if found then spend(found, reservation, outcome) end
    end
  end
end

local function with_tokens(amounts, prompt_tokens, output_tokens)
  -- A copy of these amounts with these numbers of tokens.
  local made = {}
  for measure, amount in pairs(amounts) do made[measure] = amount end
  made.prompt_tokens, made.output_tokens = prompt_tokens, output_tokens
  return made
end

local function outcome_of(reservation, command)
  -- What remains counted after a command.
  local amounts = reservation.amounts
  if command.type == 'settle' or command.type == 'report' then
    local prompt, output = command.prompt_tokens, command.output_tokens
    local uncached = prompt - command.cached_tokens
    local rate = command.rate or reservation.rate
    local whole, rest = exact_cost(rate, uncached, command.cached_tokens, output)
    return {
      amounts = with_tokens(amounts, prompt, output), uncached = uncached, cost = whole, rest = rest,
      estimated = call('EXISTS', PREFIX .. 'report:' .. command.id) == 1,
    }
  elseif command.type == 'keep' then
    return {
      amounts = amounts, uncached = amounts.prompt_tokens, cost = reservation.cost, rest = 0,
      estimated = true,
    }
  end
  return {amounts = {prompt_tokens = 0, output_tokens = 0}, uncached = 0, cost = 0, rest = 0}
end

if command.type == 'settle' or command.type == 'keep' or command.type == 'release' then
  local reservation = load(command.id)
  if reservation then
    finish(command.id, reservation, outcome_of(reservation, command))
  elseif command.type == 'release' then
    call('SET', PREFIX .. 'gone:' .. command.id, 1, 'PX', WITHDRAWN_MS)
  end
  return pack({type = 'done'})
end

if command.type == 'report' then
  local reservation, report = load(command.id), PREFIX .. 'report:' .. command.id
  local lease = reservation and call('ZSCORE', PREFIX .. 'leases', reservation.holder)
  if lease and tonumber(lease) > now then
    local before = call('GET', report)
    if not before or command.output_tokens >= unpack_(before).output_tokens then
      call('SET', report, ARGV[1])
    end
    return pack({type = 'done'})
  end
  if reservation then finish(command.id, reservation, outcome_of(reservation, command)) end
  call('SET', PREFIX .. 'gone:' .. command.id, 1, 'PX', WITHDRAWN_MS)
  return pack({type = 'done'})
end

if command.type == 'take' then
  local key = PREFIX .. 'r:' .. command.id
  local packed = call('GET', key)
  if not packed then return pack({type = 'taken'}) end
  local charge, parts = unpack_(packed)
  call('SREM', PREFIX .. 'held:' .. charge.holder, command.id)
  call('SADD', PREFIX .. 'held:' .. command.holder, command.id)
  charge.holder = command.holder
  call('SET', key, pack(charge) .. pack(parts))
  return pack({type = 'taken', output_tokens = reservation_of(charge, parts).amounts.output_tokens})
end

local function reclaim()
  local holder = call('ZRANGEBYSCORE', PREFIX .. 'leases', '-inf', now, 'LIMIT', 0, 1)[1]
  if not holder then return end
  local held = PREFIX .. 'held:' .. holder
  for _, id in ipairs(call('SPOP', held, RECLAIMED_AT_ONCE)) do
    local reservation = load(id)
    if reservation then
      local report = call('GET', PREFIX .. 'report:' .. id)
      finish(id, reservation, report and outcome_of(reservation, unpack_(report)) or {
        amounts = with_tokens(reservation.amounts, 0, 0), uncached = 0, cost = 0, rest = 0,
        doubted = true,
      })
    end
  end
  if call('EXISTS', held) == 0 then call('ZREM', PREFIX .. 'leases', holder) end
end

