-- The windows of the last minute: `window.py`. Metrics: (re)q(uests), t(okens), p(rompt), o(utput).

local Window = {}
Window.__index = Window

function Window:values(seconds)
  -- What lies in the buckets of these seconds, as it was before this command.
  local fields = {}
  for i, second in ipairs(seconds) do fields[i] = self.metric .. second end
  return call('HMGET', self.key, unpack(fields))
end

function Window:slide()
  local first, gone = self.at - WINDOW_S, min(self.at, this_second - GONE_S)
  if self.used > 0 and gone >= first then
    local seconds = {}
    for second = first, gone do seconds[#seconds + 1] = second end
    for i, value in ipairs(self:values(seconds)) do
      if value then
        self.used = self.used - value
        self.buckets[seconds[i]], self.touched[seconds[i]] = 0, true
      end
    end
  end
  self.at, self.slid = this_second, true
end

function Window:bucket(second)
  if not self.buckets[second] then
    self.buckets[second] = tonumber(self:values({second})[1]) or 0
  end
  return self.buckets[second]
end

function Window:count(second, amount)
  if amount == 0 then return end
  self.buckets[second] = self:bucket(second) + amount
  self.used = self.used + amount
  self.touched[second] = true
end

function Window:add(amount)
  self:count(self.at, amount)
end

function Window:give_back(second, amount)
  if second > self.at - GONE_S then
    self:count(second, -min(self:bucket(second), amount))
  end
end

function Window:all()
  local seconds = {}
  for second = self.at - WINDOW_S, self.at do seconds[#seconds + 1] = second end
  return seconds, self:values(seconds)
end

function Window:leaves_at(amount)
  local seconds, values = self:all()
  for i, value in ipairs(values) do
    amount = amount - (value or 0)
    if amount <= 0 then return seconds[i] + GONE_S end
  end
end

function Window:empty_at()
  if self.used == 0 then return self.at end
  if self:bucket(self.at) > 0 then return self.at + GONE_S end
  local seconds, values = self:all()
  for i = #seconds, 1, -1 do
    local amount = self.buckets[seconds[i]] or tonumber(values[i]) or 0
    if amount > 0 then return seconds[i] + GONE_S end
  end
end

local function open_windows(counters, metrics, seconds)
  -- The windows of a scope by metric, slid to the present, with these buckets; read in one go.
  local opened = {key = PREFIX .. 'w:' .. counters, windows = {}}
  if #metrics == 0 then return opened end
  local fields, n = {}, 0
  for _, metric in ipairs(metrics) do
    fields[n + 1], fields[n + 2], n = metric .. '@', metric, n + 2
    for i, second in ipairs(seconds) do fields[n + i] = metric .. second end
    n = n + #seconds
  end
  local values = call('HMGET', opened.key, unpack(fields))
  n = 0
  for _, metric in ipairs(metrics) do
    local buckets = {}
    for i, second in ipairs(seconds) do buckets[second] = tonumber(values[n + 2 + i]) or 0 end
    local window = setmetatable({
      key = opened.key, metric = metric, buckets = buckets, touched = {},
      at = tonumber(values[n + 1]) or 0, used = tonumber(values[n + 2]) or 0,
    }, Window)
    n = n + 2 + #seconds
    if this_second > window.at then window:slide() end
    opened.windows[metric] = window
  end
  return opened
end

local function save_windows(opened)
  local set, n, gone, slid = {}, 0, {}, false
  for metric, window in pairs(opened.windows) do
    if window.slid or next(window.touched) then
      set[n + 1], set[n + 2], set[n + 3], set[n + 4] = metric .. '@', window.at, metric, window.used
      n = n + 4
    end
    for second in pairs(window.touched) do
      local amount = window.buckets[second]
      if amount > 0 then
        set[n + 1], set[n + 2], n = metric .. second, amount, n + 2
      else
        gone[#gone + 1] = metric .. second
      end
    end
    slid = slid or window.slid
  end
  if n > 0 then call('HSET', opened.key, unpack(set)) end
  if #gone > 0 then call('HDEL', opened.key, unpack(gone)) end
  if slid then call('EXPIRE', opened.key, 2 * GONE_S) end
end
