-- Money, periods and budgets: `budget.py`.

local function exact_cost(rate, uncached, cached, output)
  -- Returns micro-units and the remaining pico-units. The whole micro-units and the rest of each
  -- rate are multiplied separately, because the product in pico-units may exceed 2^53.
  local of_prompt, of_cached, of_output = rate.prompt, rate.cached_prompt, rate.output
  local rest1, rest2, rest3 = of_prompt % MICRO, of_cached % MICRO, of_output % MICRO
  local rest = uncached * rest1 + cached * rest2 + output * rest3
  return uncached * ((of_prompt - rest1) / MICRO) + cached * ((of_cached - rest2) / MICRO)
    + output * ((of_output - rest3) / MICRO) + floor(rest / MICRO), rest % MICRO
end

local function cost(rate, uncached, cached, output)
  -- In micro-units, rounded up.
  local whole, rest = exact_cost(rate, uncached, cached, output)
  return rest > 0 and whole + 1 or whole
end

local function month_start(second)
  -- The first second of the month: Howard Hinnant's civil_from_days and days_from_civil, reduced to
  -- the day of the month.
  local days = floor(second / DAY_S)
  local day_of_era = (days + 719468) % 146097
  local year_of_era = floor((day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524)
    - floor(day_of_era / 146096)) / 365)
  local day_of_year = day_of_era
    - (365 * year_of_era + floor(year_of_era / 4) - floor(year_of_era / 100))
  local month = floor((5 * day_of_year + 2) / 153)
  return (days - (day_of_year - floor((153 * month + 2) / 5))) * DAY_S
end

local function budget_period(scope, period, second)
  -- The period that contains this second; nil if the scope has no limit for such periods.
  for _, name in ipairs(BUDGETS[period]) do
    if scope.limits[name] then
      local start = period == 'day' and second - second % DAY_S or month_start(second)
      return {scope_id = scope.id, period = period, start = start}
    end
  end
end

local function budget_key(period)
  return PREFIX .. 'b:' .. period.scope_id .. ':' .. period.period .. ':' .. period.start
end

local function open_budget(period)
  -- The budget of this period; false if it has not been seeded yet.
  local key = budget_key(period)
  local values = call(
    'HMGET', key, 'tokens', 'cost', 'reserved_tokens', 'reserved_cost', 'due', 'rest')
  return values[5] and {
    key = key, period = period, tokens = tonumber(values[1]), cost = tonumber(values[2]),
    reserved_tokens = tonumber(values[3]), reserved_cost = tonumber(values[4]),
    due = tonumber(values[5]), rest = tonumber(values[6] or 0),
  }
end

