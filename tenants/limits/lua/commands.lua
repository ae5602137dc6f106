-- Reservations, and the commands.

local RECORD_S = 7 * DAY_S  -- longer than any request; leases end them, this is for what they miss


-- A Scope, by index: its counters, then limits by these names. Up to 5 a window holds them.
local NAMES = {
  'counters', 'requests_per_minute', 'tokens_per_minute', 'prompt_tokens_per_minute',
  'output_tokens_per_minute', 'concurrent_streams', 'tokens_per_day', 'tokens_per_month',
  'cost_per_day', 'cost_per_month',
}
local METRICS = {'', 'q', 't', 'p', 'o'}

local function period_of(i)
  return i % 2 == 1 and 'day' or 'month'
end

-- Ending reservations -----------------------------------------------------------------------------

local function replace(window, parts, kind, reserved, final)
  -- Make the window count `final` of this kind instead of what was reserved in these parts.
  local unused = reserved - final
  if unused < 0 then return window:add(-unused) end
  for i = #parts, 1, -1 do
    if unused == 0 then return end
    local back = min(parts[i][kind], unused)
    window:give_back(parts[i].second, back)
    unused = unused - back
  end
end

local function correct(window, record, outcome)
  local metric, parts = window.metric, record.parts
  if metric == 'q' then
    replace(window, parts, 'requests', record.requests, outcome.requests)
  elseif metric == 'p' then
    replace(window, parts, 'prompt', record.prompt, outcome.uncached)
  else
    if metric == 't' then replace(window, parts, 'prompt', record.prompt, outcome.prompt) end
    replace(window, parts, 'output', record.output, outcome.output)
  end
end

local function finish(id, record, outcome)
  call('DEL', PREFIX .. 'r:' .. id)
  call('SREM', PREFIX .. 'held:' .. record.holder, id)
  local seconds, seen = {this_second}, {[this_second] = true}
  for _, part in ipairs(record.parts) do
    if part.second > this_second - GONE_S and not seen[part.second] then
      seconds[#seconds + 1] = part.second
      seen[part.second] = true
    end
  end
  for _, place in ipairs(record.places) do
    local opened = open_windows(place.counters, place.metrics, seconds)
    for _, window in pairs(opened.windows) do correct(window, record, outcome) end
    save_windows(opened)
    if place.streams and call('HINCRBY', PREFIX .. 'streams', place.counters, -1) <= 0 then
      call('HDEL', PREFIX .. 'streams', place.counters)
    end
    for _, budget in ipairs(place.budgets) do
      local purse = open_purse(budget)
      if purse then
        purse.reserved_tokens = max(0, purse.reserved_tokens - record.prompt - record.output)
        purse.reserved_cost = max(0, purse.reserved_cost - cost_with(record, 0, 0))
        purse.tokens = purse.tokens + outcome.prompt + outcome.output
        purse.cost = purse.cost + outcome.cost
        if outcome.estimated then purse.estimated = 1 end
        if outcome.doubted then purse.due = 0 end
        save_purse(purse)
      end
    end
  end
end

local function load(id)
  local packed = call('GET', PREFIX .. 'r:' .. id)
  return packed and unpack_(packed)
end

local function reclaim()
  local holder = call('ZRANGEBYSCORE', PREFIX .. 'leases', '-inf', now, 'LIMIT', 0, 1)[1]
  if not holder then return end
  local held = PREFIX .. 'held:' .. holder
  for _, id in ipairs(call('SPOP', held, RECLAIMED_AT_ONCE)) do
    local record = load(id)
    if record then
      finish(id, record, {
        requests = record.requests, prompt = 0, uncached = 0, output = 0, cost = 0, doubted = true,
      })
    end
  end
  if call('EXISTS', held) == 0 then call('ZREM', PREFIX .. 'leases', holder) end
end

-- Commands ----------------------------------------------------------------------------------------

local function new_record(holder, scopes, rate)
  local record = {
    holder = holder, rate = rate, places = {}, parts = {}, requests = 0, prompt = 0, output = 0,
  }
  for index, scope in ipairs(scopes) do
    local place = {counters = scope[1], metrics = {}, streams = scope[6] ~= nil, budgets = {}}
    for i = 2, 5 do
      if scope[i] then place.metrics[#place.metrics + 1] = METRICS[i] end
    end
    for i = 7, 8 do
      if scope[i] or scope[i + 2] then
        local period = period_of(i)
        place.budgets[#place.budgets + 1] = {scope[1], period, STARTS[period](this_second)}
      end
    end
    record.places[index] = place
  end
  return record
end

local function open_place(scope, place)
  -- Everything that is counted there, and which of its budgets still wants seeding.
  local opened = open_windows(place.counters, place.metrics, {this_second})
  opened.purses, opened.unseeded = {}, {}
  for _, budget in ipairs(place.budgets) do
    local purse = open_purse(budget)
    opened.purses[budget[2]] = purse
    if not purse then opened.unseeded[#opened.unseeded + 1] = budget end
  end
  if scope[6] then opened.streams = tonumber(call('HGET', PREFIX .. 'streams', scope[1])) or 0 end
  return opened
end

local function used_of(i, opened)
  if i < 6 then return opened.windows[METRICS[i]].used end
  if i == 6 then return opened.streams end
  local purse = opened.purses[period_of(i)]
  if i > 8 then return purse.cost + purse.reserved_cost end
  return purse.tokens + purse.reserved_tokens
end

local function measure(i, left, ask, record)
  -- What is asked of this limit at the least, and how many output tokens the rest of it allows.
  if i == 2 or i == 4 or i == 6 then
    local asked = i == 4 and ask.prompt or ask.requests
    return asked, (asked == 0 or asked <= left) and math.huge or -1
  end
  if i > 8 then
    return cost_with(record, ask.prompt, ask.least) - cost_with(record, 0, 0),
      affordable(record, ask.prompt, ask.wanted, left)
  end
  local prompt = i == 5 and 0 or ask.prompt
  return prompt + ask.least, left - prompt
end

local function wait_of(i, opened, limit, used, asked)
  -- Until there is room, if nobody else comes; math.huge where there never will be.
  if i > 6 then
    local period = period_of(i)
    local renews_at = end_of(period, opened.purses[period].budget[3])
    return max(0, renews_at * 1000 - now), renews_at
  end
  if asked > limit then return math.huge end
  if i == 6 then return STREAM_WAIT_MS end
  return opened.windows[METRICS[i]]:leaves_at(used + asked - limit) * 1000 - now
end

local function left_of(scope, opened, left)
  for i = 2, 3 do
    if scope[i] then
      local window = opened.windows[METRICS[i]]
      local reset = max(0, window:empty_at() * 1000 - now)
      left[#left + 1] = {NAMES[i], scope[i], max(0, scope[i] - window.used), reset}
    end
  end
end

local function take_due(record, places)
  -- Budgets to be compared with the ledger again: each is named once, to one who will do it.
  local due = {}
  for index, place in ipairs(record.places) do
    for _, budget in ipairs(place.budgets) do
      local purse = places[index].purses[budget[2]]
      if purse.due <= now then
        purse.due = now + REFRESH_MS
        due[#due + 1] = budget
        save_purse(purse)
      end
    end
  end
  return due
end

local function judge(scopes, places, ask, record, due)
  -- How many output tokens all limits have room for; where that is too few, the refusal as well,
  -- by the limit to wait longest for.
  local room, longest, refusal = ask.wanted, -1, nil
  for index, scope in ipairs(scopes) do
    for i = 2, 10 do
      local limit = scope[i]
      if limit then
        local used = used_of(i, places[index])
        local asked, allowed = measure(i, limit - used, ask, record)
        room = min(room, allowed)
        if allowed < ask.least then
          local wait, renews_at = wait_of(i, places[index], limit, used, asked)
          if wait > longest then
            longest = wait
            refusal = answer('refused', index - 1, NAMES[i], used, asked,
              wait < math.huge and wait or nil, renews_at, due)
          end
        end
      end
    end
  end
  return room, refusal
end

local function reserve(id, holder, record, places, part, is_new)
  for index, place in ipairs(record.places) do
    for metric, window in pairs(places[index].windows) do
      if metric == 'q' then
        window:add(part.requests)
      else
        window:add((metric == 'o' and 0 or part.prompt) + (metric == 'p' and 0 or part.output))
      end
    end
    if place.streams and is_new then call('HINCRBY', PREFIX .. 'streams', place.counters, 1) end
    for _, budget in ipairs(place.budgets) do
      local purse = places[index].purses[budget[2]]
      purse.reserved_tokens = purse.reserved_tokens + part.prompt + part.output
      purse.reserved_cost = purse.reserved_cost
        + cost_with(record, part.prompt, part.output) - cost_with(record, 0, 0)
      save_purse(purse)
    end
  end
  local parts = {}
  for _, old in ipairs(record.parts) do
    if old.second > this_second - GONE_S then parts[#parts + 1] = old end
  end
  parts[#parts + 1] = part
  record.parts = parts
  record.requests = record.requests + part.requests
  record.prompt = record.prompt + part.prompt
  record.output = record.output + part.output
  call('SET', PREFIX .. 'r:' .. id, pack(record), 'EX', RECORD_S)
  call('SADD', PREFIX .. 'held:' .. record.holder, id)
  call('ZADD', PREFIX .. 'leases', now + LEASE_MS, holder)
end

local commands = {}

function commands.charge(id, holder, scopes, rate, requests, prompt, wanted, least)
  reclaim()
  local seen = call('MGET', PREFIX .. 'r:' .. id, PREFIX .. 'gone:' .. id)
  if seen[2] then return answer('withdrawn') end
  local record = seen[1] and unpack_(seen[1]) or new_record(holder, scopes, rate)
  local places, unseeded = {}, {}
  for index, scope in ipairs(scopes) do
    places[index] = open_place(scope, record.places[index])
    for _, budget in ipairs(places[index].unseeded) do unseeded[#unseeded + 1] = budget end
  end
  local reply
  if #unseeded > 0 then
    reply = answer('unseeded', unseeded)
  else
    local ask = {requests = requests, prompt = prompt, wanted = wanted, least = least}
    local due = take_due(record, places)
    local granted, refusal = judge(scopes, places, ask, record, due)
    if refusal then
      reply = refusal
    else
      local part = {second = this_second, requests = requests, prompt = prompt, output = granted}
      reserve(id, holder, record, places, part, not seen[1])
      local left = {}
      for index, scope in ipairs(scopes) do left_of(scope, places[index], left) end
      reply = answer('granted', granted, left, due)
    end
  end
  for _, opened in ipairs(places) do save_windows(opened) end
  return reply
end

function commands.settle(id, prompt, cached, output)
  local record = load(id)
  if record then
    finish(id, record, {
      requests = record.requests, prompt = prompt, uncached = prompt - cached, output = output,
      cost = cost(record.rate, prompt - cached, cached, output),
    })
  end
  return answer('done')
end

function commands.keep(id)
  local record = load(id)
  if record then
    finish(id, record, {
      requests = record.requests, prompt = record.prompt, uncached = record.prompt,
      output = record.output, cost = cost_with(record, 0, 0), estimated = true,
    })
  end
  return answer('done')
end

function commands.release(id)
  local record = load(id)
  if record then
    finish(id, record, {requests = 0, prompt = 0, uncached = 0, output = 0, cost = 0})
  else
    call('SET', PREFIX .. 'gone:' .. id, 1, 'PX', WITHDRAWN_MS)
  end
  return answer('done')
end

function commands.renew(holder, lease_ms)
  call('ZADD', PREFIX .. 'leases', now + lease_ms, holder)
  reclaim()
  return answer('done')
end

function commands.holds(holder)
  return answer('ids', call('SMEMBERS', PREFIX .. 'held:' .. holder))
end

function commands.seed(budget, tokens, spent)
  local purse = open_purse(budget)
  if not purse then
    purse = {key = purse_key(budget), tokens = 0, cost = 0, reserved_tokens = 0, reserved_cost = 0}
  elseif purse.estimated == 1 then
    purse.tokens, purse.cost = 0, 0
  end
  purse.tokens, purse.cost = max(purse.tokens, tokens), max(purse.cost, spent)
  purse.due, purse.estimated = now + REFRESH_MS, 0
  save_purse(purse)
  call('EXPIRE', purse.key, PURSE_S)
  return answer('done')
end

function commands.look(scopes)
  local left = {}
  for _, scope in ipairs(scopes) do
    local shown = {}
    for i = 2, 3 do
      if scope[i] then shown[#shown + 1] = METRICS[i] end
    end
    local opened = open_windows(scope[1], shown, {this_second})
    left_of(scope, opened, left)
  end
  return answer('rooms', left)
end

function commands.count(scope)
  local metrics, used = {}, {}
  for i = 2, 5 do
    if scope[i] then metrics[#metrics + 1] = METRICS[i] end
  end
  local opened = open_windows(scope[1], metrics, {this_second})
  if scope[6] then opened.streams = tonumber(call('HGET', PREFIX .. 'streams', scope[1])) or 0 end
  for i = 2, 6 do
    if scope[i] then used[#used + 1] = {NAMES[i], used_of(i, opened)} end
  end
  return answer('counts', used)
end

local command = unpack_(ARGV[1])
return commands[command[1]](unpack(command, 2, 9))
