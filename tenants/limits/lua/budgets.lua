-- Money, periods and budgets: `purse.py`.

local function exact_cost(rate, uncached, cached, output)
  -- Micro-units, and pico-units below them. Whole micro-units and the rest of each rate apart: the
  -- product in pico-units may be beyond 2^53.
  local rest1, rest2, rest3 = rate[1] % MICRO, rate[2] % MICRO, rate[3] % MICRO
  local rest = uncached * rest1 + cached * rest2 + output * rest3
  return uncached * ((rate[1] - rest1) / MICRO) + cached * ((rate[2] - rest2) / MICRO)
    + output * ((rate[3] - rest3) / MICRO) + floor(rest / MICRO), rest % MICRO
end

local function cost(rate, uncached, cached, output)
  -- In micro-units, a started one whole.
  local whole, rest = exact_cost(rate, uncached, cached, output)
  return rest > 0 and whole + 1 or whole
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

local function budget_of(counters, i, second)
  -- Of the period that this second lies in; odd limits are of days.
  if i % 2 == 1 then return {counters, 'day', second - second % DAY_S} end
  return {counters, 'month', month_start(second)}
end

local function purse_key(budget)
  return PREFIX .. 'b:' .. budget[1] .. ':' .. budget[2] .. ':' .. budget[3]
end

local function open_purse(budget)
  -- False if it was not seeded yet.
  local key = purse_key(budget)
  local values = call(
    'HMGET', key, 'tokens', 'cost', 'reserved_tokens', 'reserved_cost', 'due', 'rest')
  return values[5] and {
    key = key, budget = budget, tokens = tonumber(values[1]), cost = tonumber(values[2]),
    reserved_tokens = tonumber(values[3]), reserved_cost = tonumber(values[4]),
    due = tonumber(values[5]), rest = tonumber(values[6] or 0),
  }
end

