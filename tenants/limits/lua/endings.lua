-- Records, and how they end: `record.py`.

local function record_of(charge, parts)
  -- Each part is a second and the requests, prompt and output tokens that were reserved in it; the
  -- first says when it began.
  local record = {
    holder = charge[3], scopes = charge[4], rate = charge[5], parts = parts,
    requests = 0, prompt = 0, output = 0,
  }
  for _, part in ipairs(parts) do
    record.requests = record.requests + part[2]
    record.prompt = record.prompt + part[3]
    record.output = record.output + part[4]
  end
  record.cost = cost(record.rate, record.prompt, 0, record.output)
  return record
end

local function load(id)
  local packed = call('GET', PREFIX .. 'r:' .. id)
  return packed and record_of(unpack_(packed))
end

local function replace(window, i, parts, kind, unused)
  -- Make it count so much less of this kind than was reserved, the newest parts' first.
  if unused < 0 then return count(window, i, window.sum[1], -unused) end
  for n = #parts, 1, -1 do
    if unused == 0 then return end
    local back = min(parts[n][kind], unused)
    give_back(window, i, parts[n][1], back)
    unused = unused - back
  end
end

local function correct(scope, record, outcome)
  -- Make the windows of a scope count the outcome instead of what was reserved.
  local requests, prompt = record.requests - outcome.requests, record.prompt - outcome.prompt
  local uncached, output = record.prompt - outcome.uncached, record.output - outcome.output
  if not (scope[2] and requests ~= 0 or scope[3] and (prompt ~= 0 or output ~= 0)
      or scope[4] and uncached ~= 0 or scope[5] and output ~= 0) then
    return
  end
  local parts = record.parts
  local window = open_window(scope[1], parts[#parts][1])
  if scope[2] then replace(window, 2, parts, 2, requests) end
  if scope[3] then
    replace(window, 3, parts, 3, prompt)
    replace(window, 3, parts, 4, output)
  end
  if scope[4] then replace(window, 4, parts, 3, uncached) end
  if scope[5] then replace(window, 5, parts, 4, output) end
  save_window(window)
end

local function spend(budget, record, outcome)
  local purse = open_purse(budget)
  if not purse then return end
  local rest = purse.rest + outcome.rest
  call('HSET', purse.key,
    'tokens', purse.tokens + outcome.prompt + outcome.output,
    'cost', purse.cost + outcome.cost + floor(rest / MICRO),
    'rest', rest % MICRO,
    'reserved_tokens', max(0, purse.reserved_tokens - record.prompt - record.output),
    'reserved_cost', max(0, purse.reserved_cost - record.cost))
  if outcome.estimated then call('HSET', purse.key, 'estimated', 1) end
  if outcome.doubted then call('HSET', purse.key, 'due', 0) end
end

local function finish(id, record, outcome)
  call('DEL', PREFIX .. 'r:' .. id)
  call('SREM', PREFIX .. 'held:' .. record.holder, id)
  for _, scope in ipairs(record.scopes) do
    correct(scope, record, outcome)
    if scope[6] and call('HINCRBY', PREFIX .. 'streams', scope[1], -1) <= 0 then
      call('HDEL', PREFIX .. 'streams', scope[1])
    end
    for i = 7, 8 do
      if scope[i] or scope[i + 2] then
        spend(budget_of(scope[1], i, record.parts[1][1]), record, outcome)
      end
    end
  end
end

local function outcome_of(record)
  -- What stays counted, by the command.
  if name == 'settle' then
    local prompt, cached, output = command[3], command[4], command[5]
    local whole, rest = exact_cost(record.rate, prompt - cached, cached, output)
    return {
      requests = record.requests, prompt = prompt, uncached = prompt - cached, output = output,
      cost = whole, rest = rest,
    }
  elseif name == 'keep' then
    return {
      requests = record.requests, prompt = record.prompt, uncached = record.prompt,
      output = record.output, cost = record.cost, rest = 0, estimated = true,
    }
  end
  return {requests = 0, prompt = 0, uncached = 0, output = 0, cost = 0, rest = 0}
end

if name == 'settle' or name == 'keep' or name == 'release' then
  local id = command[2]
  local record = load(id)
  if record then
    finish(id, record, outcome_of(record))
  elseif name == 'release' then
    call('SET', PREFIX .. 'gone:' .. id, 1, 'PX', WITHDRAWN_MS)
  end
  return answer('done')
end

local function reclaim()
  local holder = call('ZRANGEBYSCORE', PREFIX .. 'leases', '-inf', now, 'LIMIT', 0, 1)[1]
  if not holder then return end
  local held = PREFIX .. 'held:' .. holder
  for _, id in ipairs(call('SPOP', held, RECLAIMED_AT_ONCE)) do
    local record = load(id)
    if record then
      finish(id, record, {
        requests = record.requests, prompt = 0, uncached = 0, output = 0, cost = 0, rest = 0,
        doubted = true,
      })
    end
  end
  if call('EXISTS', held) == 0 then call('ZREM', PREFIX .. 'leases', holder) end
end

