-- The windows of the last minute: `window.py`, all those of a scope at once. A Count is an array: a
-- second, then what was counted by limit, 2 to 5; what has no limit is not counted.

local function count_of(packed, second)
  if packed then return {unpack_(packed)} end
  return {second, 0, 0, 0, 0}
end

local function packed_buckets(window, first, last)
  local seconds = {}
  for second = first, last do seconds[#seconds + 1] = second end
  return call('HMGET', window.key, unpack(seconds)), seconds
end

local function slide(window)
  -- Let go of what is over a minute old; saved at once, whatever becomes of the command.
  local sum = window.sum
  local buckets, seconds = packed_buckets(
    window, sum[1] - WINDOW_S, min(sum[1], this_second - GONE_S))
  for _, packed in ipairs(buckets) do
    if packed then
      local old = {unpack_(packed)}
      for i = 2, 5 do sum[i] = sum[i] - old[i] end
    end
  end
  sum[1] = this_second
  call('HSET', window.key, '@', pack(unpack(sum)))  -- HDEL first would let it exceed memory
  call('HDEL', window.key, unpack(seconds))
  call('EXPIRE', window.key, 2 * GONE_S)
end

local function open_window(counters, second)
  -- Slid to the present, with the bucket of this second if it is still in there. All is forgotten
  -- if the clock was set back by more than a minute.
  local key = PREFIX .. 'w:' .. counters
  local packed = call('HMGET', key, '@', second)
  local window = {key = key, sum = count_of(packed[1], this_second - 1), buckets = {}}
  if this_second > window.sum[1] then
    slide(window)
  elseif this_second < window.sum[1] - WINDOW_S then
    call('DEL', key)
    return open_window(counters, second)
  end
  if second > window.sum[1] - GONE_S then window.buckets[second] = count_of(packed[2], second) end
  return window
end

local function save_window(window)
  local set, n = {'@', pack(unpack(window.sum))}, 2
  for second, bucket in pairs(window.buckets) do
    set[n + 1], set[n + 2], n = second, pack(unpack(bucket)), n + 2
  end
  call('HSET', window.key, unpack(set))
end

local function bucket_at(window, second)
  local bucket = window.buckets[second]
  if not bucket then
    bucket = count_of(call('HGET', window.key, second), second)
    window.buckets[second] = bucket
  end
  return bucket
end

local function count(window, i, second, amount)
  local bucket = bucket_at(window, second)
  bucket[i], window.sum[i] = bucket[i] + amount, window.sum[i] + amount
end

local function give_back(window, i, second, amount)
  if second > window.sum[1] - GONE_S then
    count(window, i, second, -min(bucket_at(window, second)[i], amount))
  end
end

