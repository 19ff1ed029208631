package redis

// What is kept of a user is one hash, so that all of it is in one slot:
//
//	top         the highest route epoch that was given out
//	s:SESSION   a route: epoch, end of life in microseconds, login, device, class, node, boot id, since, each with a newline behind it
//	l:LOGIN     a login that claimed under kick_old: epoch, until when it is remembered, class, each with a newline behind it
//	x:SESSION   why a session lost its route (superseded or replaced), and until when that is remembered
//
// Times are the server's. The hash ends by itself after twice the life of a
// route, or when no login in it is remembered any more.

// common is in front of every script. KEYS[1] is the hash, ARGV[1] the life of a
// route in microseconds, ARGV[2] the highest epoch that the caller has seen, ARGV[3]
// for how long logins are remembered, in microseconds.
const common = `
local key, ttl, floor, known = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
` + readClock + `
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function num(n) return string.format('%.0f', n) end
local function fields(v)
  local t = {}
  for f in string.gmatch(v, '([^\n]*)\n') do t[#t + 1] = f end
  return t
end
local top, routes, displaced, logins = 0, {}, {}, {}
local all = redis.call('HGETALL', key)
for i = 1, #all, 2 do
  local k, v = all[i], all[i + 1]
  if k == 'top' then
    top = tonumber(v)
  else
    local f, id = fields(v), string.sub(k, 3)
    if tonumber(f[2]) <= now then
      redis.call('HDEL', key, k)
    elseif string.sub(k, 1, 2) == 's:' then
      routes[#routes + 1] = {id = id, raw = v, epoch = tonumber(f[1]), login = f[3], device = f[4], class = f[5], node = f[6], boot = f[7], since = tonumber(f[8])}
    elseif string.sub(k, 1, 2) == 'l:' then
      logins[id] = {epoch = tonumber(f[1]), ends = tonumber(f[2]), class = f[3]}
    else
      displaced[id] = f[1]
    end
  end
end
local function live()
  local ends = now + 2 * ttl
  for _, l in pairs(logins) do ends = math.max(ends, l.ends) end
  redis.call('PEXPIRE', key, num((ends - now) / 1000))
end
local function remember(login, epoch, class)
  logins[login] = {epoch = epoch, ends = now + known, class = class}
  redis.call('HSET', key, 'l:' .. login, num(epoch) .. '\n' .. num(now + known) .. '\n' .. class .. '\n')
end
local function raise(e)
  if e > top then
    top = e
    redis.call('HSET', key, 'top', num(e))
  end
end
local function displace(list, why)
  for _, r in ipairs(list) do
    redis.call('HDEL', key, 's:' .. r.id)
    redis.call('HSET', key, 'x:' .. r.id, why .. '\n' .. num(now + 2 * ttl) .. '\n')
  end
end
local function put(id, epoch, rest)
  raise(epoch)
  redis.call('HDEL', key, 'x:' .. id)
  redis.call('HSET', key, 's:' .. id, num(epoch) .. '\n' .. num(now + ttl) .. '\n' .. rest)
  local login = fields(rest)[1]
  local l = logins[login]
  if l and l.ends < now + known / 2 then remember(login, l.epoch, l.class) end
  live()
end
`

// claim takes session, login, device, class, the rest of the record, the epoch
// (0 = a new one), mode, multi, same class and total, and does what store.Admit
// and store.Logins do. It answers what came of it, the epoch, the routes that it
// displaced or that are in the way, behind each other, and the logins that it
// replaced while they were away.
const claimScript = common + `
local id, login, device, class, rest = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local epoch, mode, multi, same, total = tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11]), ARGV[12] == '1', tonumber(ARGV[13])
local since = tonumber(fields(rest)[6])
if epoch == 0 then
  -- Never below its beginning: sessions that claim late are ranked by theirs, also over a
  -- server whose clock is behind.
  epoch = math.max(top + 1, now, floor + 1, since)
else
  -- A claim that its caller had given up may have come true since, with a newer epoch
  -- than its session deserves: what began before a session that is ranked by its
  -- beginning does not outrank it.
  for _, r in ipairs(routes) do
    if since == epoch and r.since < since then r.epoch = math.min(r.epoch, epoch - 1) end
  end
end
local function told(list) local t = {} for _, r in ipairs(list) do t[#t + 1] = r.id t[#t + 1] = r.raw end return t end
local mine = false
for _, r in ipairs(routes) do
  if r.login == login then
    mine = true
    if r.device == device and r.id ~= id and r.epoch > epoch then return {'superseded', num(epoch), {}, {}, {}} end
  end
end
local function ranks(sameclass, without)
  local out, at = {}, {}
  for _, r in ipairs(routes) do
    if r.login ~= login and not (sameclass and r.class ~= class) and not (without and without[r.login]) then
      local o = at[r.login]
      if o then
        o.oldest, o.newest = math.min(o.oldest, r.epoch), math.max(o.newest, r.epoch)
      else
        o = {login = r.login, oldest = r.epoch, newest = r.epoch}
        at[r.login] = o
        out[#out + 1] = o
      end
    end
  end
  return out
end
local ended = {}
local function beyond(others, n)
  if n < 1 or #others < n then return end
  local count = #others + 1 - n
  if not mine then others[#others + 1] = {login = login, oldest = epoch, newest = epoch} end
  table.sort(others, function(a, b) return a.oldest < b.oldest end)
  for i = 1, count do ended[others[i].login] = true end
end
if mode == 'multi' then
  beyond(ranks(true), multi)
else
  for _, o in ipairs(ranks(same)) do
    if mode == 'kick_old' and o.newest > epoch then return {'replaced', num(epoch), {}, {}, {}} end
    ended[o.login] = true
  end
end
if mode == 'reject_new' then
  local others = ranks(false)
  if total > 0 and #others >= total then for _, o in ipairs(others) do ended[o.login] = true end end
  if next(ended) then
    local holders = {}
    for _, r in ipairs(routes) do if ended[r.login] then holders[#holders + 1] = r end end
    return {'refused', num(epoch), {}, told(holders), {}}
  end
else
  beyond(ranks(false, ended), total)
end
if ended[login] then return {'replaced', num(epoch), {}, {}, {}} end
local superseded, replaced = {}, {}
for _, r in ipairs(routes) do
  if r.id ~= id then
    if r.login == login and r.device == device then
      superseded[#superseded + 1] = r
    elseif ended[r.login] then
      replaced[#replaced + 1] = r
    end
  end
end
local away = {}
if mode == 'kick_old' then
  local held = {}
  for _, r in ipairs(routes) do held[r.login] = true end
  for l, o in pairs(logins) do
    if l ~= login and not (same and o.class ~= class) and o.epoch <= epoch then
      redis.call('HDEL', key, 'l:' .. l)
      logins[l] = nil
      if not held[l] then away[#away + 1] = l end
    end
  end
  remember(login, epoch, class)
end
displace(superseded, 'superseded')
displace(replaced, 'replaced')
put(id, epoch, rest)
return {'kept', num(epoch), told(superseded), told(replaced), away}
`

// refresh takes session, login, device, the rest of the record and the epoch.
const refreshScript = common + `
local id, login, device, rest, epoch = ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local older = {}
for _, r in ipairs(routes) do
  if r.id == id and r.epoch == epoch then
    put(id, epoch, rest)
    return 'kept'
  end
end
if displaced[id] then return displaced[id] end
for _, r in ipairs(routes) do
  if r.login == login and r.device == device then
    if r.epoch > epoch then return 'superseded' end
    older[#older + 1] = r
  end
end
displace(older, 'superseded')
put(id, epoch, rest)
return 'restored'
`

// release takes session and epoch.
const releaseScript = common + `
for _, r in ipairs(routes) do
  if r.id == ARGV[4] and r.epoch == tonumber(ARGV[5]) then
    return redis.call('HDEL', key, 's:' .. r.id)
  end
end
return 0
`

// sweep takes node and boot id.
const sweepScript = common + `
local n = 0
for _, r in ipairs(routes) do
  if r.node == ARGV[4] and r.boot == ARGV[5] then n = n + redis.call('HDEL', key, 's:' .. r.id) end
end
return n
`

// memory names what the server remembers: the name is lost with everything else.
const memoryScript = `
local name = redis.call('GET', KEYS[1])
if not name then
  name = ARGV[1]
  redis.call('SET', KEYS[1], name)
end
return name
`
