-- The sliding windows of a scope: `window.py`, for all measures at once. A bucket maps measures to
-- what was counted in one second. Measures without a limit are not counted.

local function packed_buckets(window, first, last)
  local seconds = {}
  for second = first, last do seconds[#seconds + 1] = second end
  return call('HMGET', window.key, unpack(seconds)), seconds
end

local function packed_sum(window)
  window.sum.second = window.second
  return pack(window.sum)
end

local function slide(window)
  -- Drops what is more than a minute old. Saved at once, whatever the outcome of the command.
  local sum = window.sum
  local buckets, seconds = packed_buckets(
    window, window.second - WINDOW_S, min(window.second, this_second - GONE_S))
  for _, packed in ipairs(buckets) do
    if packed then
      for measure, amount in pairs(unpack_(packed)) do sum[measure] = sum[measure] - amount end
    end
  end
  window.second = this_second
  call('HSET', window.key, '@', packed_sum(window))  -- an HDEL before it would let it exceed memory
  call('HDEL', window.key, unpack(seconds))
  call('EXPIRE', window.key, 2 * GONE_S)
end

local function open_window(scope_id, second)
  -- The windows, slid to the present, with the bucket of this second if they still contain it.
  -- Everything is dropped if the clock was set back by more than a minute.
  local key = PREFIX .. 'w:' .. scope_id
  local packed = call('HMGET', key, '@', second)
  local sum = packed[1] and unpack_(packed[1]) or {second = this_second - 1}
  local window = {key = key, sum = sum, second = sum.second, buckets = {}}
  if this_second > window.second then
    slide(window)
  elseif this_second < window.second - WINDOW_S then
    call('DEL', key)
    return open_window(scope_id, second)
  end
  if second > window.second - GONE_S then
    window.buckets[second] = packed[2] and unpack_(packed[2]) or {}
  end
  return window
end

local function save_window(window)
  local set, n = {'@', packed_sum(window)}, 2
  for second, bucket in pairs(window.buckets) do
    set[n + 1], set[n + 2], n = second, pack(bucket), n + 2
  end
  call('HSET', window.key, unpack(set))
end

local function bucket_at(window, second)
  local bucket = window.buckets[second]
  if not bucket then
    local packed = call('HGET', window.key, second)
    bucket = packed and unpack_(packed) or {}
    window.buckets[second] = bucket
  end
  return bucket
end

local function count(window, measure, second, amount)
  local bucket, sum = bucket_at(window, second), window.sum
  bucket[measure] = (bucket[measure] or 0) + amount
  sum[measure] = (sum[measure] or 0) + amount
end

local function give_back(window, measure, second, amount)
  if second > window.second - GONE_S then
    count(window, measure, second, -min(bucket_at(window, second)[measure] or 0, amount))
  end
end

