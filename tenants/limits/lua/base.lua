-- `state.py` on Redis: each command of `commands.py` is one atomic step, on Redis's own clock.
-- The files of this folder form one script: base, windows, budgets, endings, commands, charge. Each
-- run defines its functions again, so a command returns before those that it does not need.
--
-- ARGV[1] is the command as MessagePack; ARGV[2] is a Unix time in milliseconds, set only by tests.
-- The reply is MessagePack too, both with field names. Python supplies the constants of time and,
-- from the table of kinds (`kinds.py`), MEASURE_OF (by name), IN_MINUTE and CONCURRENT (names),
-- BUDGETS (names by period), KINDS (all names in order), WINDOW_OF (by name) and SHOWN (names).
-- The script builds its keys from names, so it needs a single Redis, not a cluster. No key may be
-- evicted. All keys start with PREFIX, which must change with the format of their values:
--
-- w:<scope id>                   hash: the sliding windows of a scope. Field `<second>` is what was
--                                counted in that second; `@` is the sum of these fields and the
--                                second up to which the windows have slid; see windows.lua
-- streams                        hash: number of streams by scope id
-- b:<scope id>:<period>:<start>  hash: one budget
-- r:<id>                         one reservation: its first Charge as received, and its parts
-- report:<id>                    another process's Report of the reservation, as received
-- held:<holder>                  set: ids of the holder's reservations
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
