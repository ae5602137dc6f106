-- Money, periods and budgets: `purse.py`, and `affordable` of `record.py`.

local function cost(rate, uncached, cached, output)
  -- In micro-units, a started one whole. Whole micro-units and the rest of each rate apart: the
  -- product in pico-units may be beyond 2^53.
  local rest1, rest2, rest3 = rate[1] % MICRO, rate[2] % MICRO, rate[3] % MICRO
  return uncached * ((rate[1] - rest1) / MICRO) + cached * ((rate[2] - rest2) / MICRO)
    + output * ((rate[3] - rest3) / MICRO)
    + math.ceil((uncached * rest1 + cached * rest2 + output * rest3) / MICRO)
end

local function cost_with(record, prompt, output)
  return cost(record.rate, record.prompt + prompt, 0, record.output + output)
end

local function affordable(record, prompt, wanted, money)
  money = money + cost_with(record, 0, 0)
  if cost_with(record, prompt, wanted) <= money then return wanted end
  local enough, too_many = -1, wanted
  while too_many - enough > 1 do
    local middle = floor((enough + too_many) / 2)
    if cost_with(record, prompt, middle) <= money then enough = middle else too_many = middle end
  end
  return enough
end

local function month_start(second)
  -- Howard Hinnant's civil_from_days and days_from_civil, as far as the day of the month goes.
  local days = floor(second / DAY_S)
  local day_of_era = (days + 719468) % 146097
  local year_of_era = floor((day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524)
    - floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era
    - (365 * year_of_era + floor(year_of_era / 4) - floor(year_of_era / 100))
  local month = floor((5 * day_of_year + 2) / 153)
  return (days - (day_of_year - floor((153 * month + 2) / 5))) * DAY_S
end

local STARTS = {day = function(second) return second - second % DAY_S end, month = month_start}

local function end_of(period, start)
  return period == 'day' and start + DAY_S or month_start(start + 31 * DAY_S)
end

local function purse_key(budget)
  return PREFIX .. 'b:' .. budget[1] .. ':' .. budget[2] .. ':' .. budget[3]
end

local PURSE_S = 40 * DAY_S  -- longer than a month
local PURSE = {'tokens', 'cost', 'reserved_tokens', 'reserved_cost', 'due', 'estimated'}

local function open_purse(budget)
  -- nil if it was not seeded yet.
  local key = purse_key(budget)
  local values = call('HMGET', key, unpack(PURSE))
  if not values[5] then return nil end
  local purse = {key = key, budget = budget}
  for i, name in ipairs(PURSE) do purse[name] = tonumber(values[i]) end
  return purse
end

local function save_purse(purse)
  local set = {}
  for i, name in ipairs(PURSE) do set[2 * i - 1], set[2 * i] = name, purse[name] end
  call('HSET', purse.key, unpack(set))
end

