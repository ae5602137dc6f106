-- `state.py` on Redis: every command of `commands.py` as one atomic step, on Redis's own clock.
-- The files of this folder make one script: base, windows, budgets, endings, commands, charge. Each
-- run of it makes its functions anew, so a command returns before those that it has no need of.
--
-- ARGV[1] is the command as MessagePack; ARGV[2] a unix time in milliseconds, given by tests alone.
-- The answer is MessagePack too, both with field names. Constants come from Python: those of time,
-- and from the table of kinds (`kinds.py`) MEASURE_OF (by name), IN_MINUTE and CONCURRENT (names),
-- BUDGETS (names by period), KINDS (all names in order), WINDOW_OF (by name) and SHOWN (names).
-- Keys are made here from names, so this needs a single Redis, not a cluster. Nothing may be evicted
-- from it. All begin with PREFIX, which is to be changed with the form of what lies under them:
--
-- w:<scope id>                   hash: the sliding windows of a scope. `<second>` is what was
--                                counted in it, `@` the sum of these and the second to which it is
--                                slid; see windows.lua
-- streams                        hash: streams by scope id
-- b:<scope id>:<period>:<start>  hash: one budget
-- r:<id>                         one reservation: the Charge that made it, as it came, and its parts
-- told:<id>                      what others reported of it: a Report as it came
-- held:<holder>                  set of ids
-- leases                         sorted set: holders by the end of their lease in milliseconds
-- gone:<id>                      a withdrawn id

local floor, min, max = math.floor, math.min, math.max
local call, pack, unpack_ = redis.call, cmsgpack.pack, cmsgpack.unpack

local PREFIX = 'limits3:'
local MICRO = 1000000
local DAY_S = 86400

local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end
local this_second = floor(now / 1000)

local command = unpack_(ARGV[1])
