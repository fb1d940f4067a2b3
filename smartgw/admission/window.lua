-- Charges units to windows and quotas that several gateway processes share (contract 6.1, 6.6).
-- The same arithmetic as window.py, which says what it means; tests hold the two together.
--
-- KEYS: one for each budget. ARGV: four for each: the limit; the span in microseconds, 0 for a day
-- of UTC; the units, 0 to look only, negative to give back (then the limit is the time of the
-- charge); how many of the budgets that follow are taken with this one, all or none.
-- Returns the store's time and, for each such group: the wait in microseconds (0: taken, -1: never
-- fits, -2: a key holds something else); then for each budget: the units used, when that changes.

local floor, ceil, min = math.floor, math.ceil, math.min
local byte, char, sub = string.byte, string.char, string.sub
local DAY = 86400000000
local HEAD = 26 -- bytes of '<BddI4I4B'

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function settle(s)
  local span, cell, place = s.span, s.cell, s.place
  local at = now
  if at < s.newest then
    local back = floor((s.newest - at) / cell) * cell
    s.newest = s.newest - back
    s.due = s.due - back
    s.moved = back > 0
    at = s.newest
  end
  s.at = at
  if at < s.due then return end
  local edge = at - span
  if s.newest <= edge or s.used == 0 then
    s.used, s.count, s.packed = 0, 0, ''
    return
  end
  local packed, used = s.packed, s.used
  local stamp = s.due - span
  local start = stamp - byte(packed, 2) * place
  local i = 1
  while stamp <= edge do
    used = used - byte(packed, i + 2)
    i = i + 3
    if i > #packed then
      stamp = s.newest
      break
    end
    local gap, within = byte(packed, i, i + 1)
    start = start + gap * cell
    stamp = start + within * place
  end
  s.used, s.packed, s.due = used, sub(packed, i), stamp + span
end

local function load(key, span)
  local value = redis.pcall('GET', key)
  if not value then
    value = nil
  elseif type(value) ~= 'string' then
    return nil
  end
  if span == 0 then
    local today, day, used = floor(now / DAY), 0, 0
    if value then
      if #value ~= 13 or byte(value) ~= 81 then return nil end
      local _
      _, day, used = struct.unpack('<BdI4', value)
    end
    if today > day then day, used = today, 0 end
    return {key = key, span = 0, day = day, used = used}
  end
  local place = ceil(span / 60000)
  local s = {key = key, span = span, place = place, cell = place * 250}
  if value then
    if #value < HEAD or byte(value) ~= 87 then return nil end
    local _
    _, s.newest, s.due, s.used, s.count, s.gap = struct.unpack('<BddI4I4B', value)
    s.packed = sub(value, HEAD + 1)
    if #s.packed % 3 ~= 0 or (s.packed == '') ~= (s.used == s.count) then return nil end
    settle(s)
  else
    s.newest, s.due, s.used, s.count, s.gap, s.packed, s.at = 0, 0, 0, 0, 0, '', now
  end
  return s
end

local function wait(s, units, limit)
  local over = s.used + units - limit
  if units <= 0 or over <= 0 then return 0 end
  if units > limit then return -1 end
  if s.span == 0 then return (s.day + 1) * DAY - now end
  local packed = s.packed
  local stamp = s.due - s.span
  if packed ~= '' then
    local start = stamp - byte(packed, 2) * s.place
    local i = 1
    while true do
      over = over - byte(packed, i + 2)
      if over <= 0 then break end
      i = i + 3
      if i > #packed then
        stamp = s.newest
        break
      end
      local gap, within = byte(packed, i, i + 1)
      start = start + gap * s.cell
      stamp = start + within * s.place
    end
  end
  return stamp + s.span - now
end

local function reset(s, limit)
  if s.used == 0 then return 0 end
  if s.span == 0 then return (s.day + 1) * DAY - now end
  if s.used > limit and limit > 0 then return wait(s, 1, limit) end
  return s.due - now
end

local function add(s, units)
  s.used = s.used + units
  if s.span == 0 then return end
  local at, cell = s.at, s.cell
  local index, before = floor(at / cell), floor(s.newest / cell)
  if s.count > 0 and index == before then
    s.count = s.count + units
    s.newest = at
    if s.packed == '' then s.due = at + s.span end
    return
  end
  if s.count > 0 then
    local within = ceil((s.newest - before * cell) / s.place)
    if s.packed == '' then
      s.due = before * cell + within * s.place + s.span
      s.gap = 0
    end
    local count, gap, packed = s.count, s.gap, s.packed
    while count > 0 do
      packed = packed .. char(gap, within, min(count, 255))
      count = count - 255
      gap = 0
    end
    s.packed, s.gap = packed, 0
  end
  if s.packed ~= '' then
    s.gap = s.gap + index - before
  else
    s.due = at + s.span
    s.gap = 0
  end
  s.newest, s.count = at, units
end

local function refund(s, units, at)
  units = min(units, s.used)
  if s.span == 0 then
    if floor(at / DAY) == s.day then s.used = s.used - units end
    return
  end
  if floor(at / s.cell) == floor(s.newest / s.cell) and s.count >= units then
    s.count = s.count - units
    s.used = s.used - units
    return
  end
  while units > 0 and s.packed ~= '' do
    local packed = s.packed
    local gap, within, count = byte(packed, 1, 3)
    local taken = min(units, count)
    units = units - taken
    s.used = s.used - taken
    if taken < count then
      s.packed = char(gap, within, count - taken) .. sub(packed, 4)
    elseif #packed == 3 then
      s.packed = ''
      s.due = s.newest + s.span
    else
      local next_gap, next_within = byte(packed, 4, 5)
      local start = s.due - s.span - within * s.place + next_gap * s.cell
      s.packed = sub(packed, 4)
      s.due = start + next_within * s.place + s.span
    end
  end
  s.count = s.count - units
  s.used = s.used - units
end

local function save(s)
  if s.span == 0 then
    local left = (s.day + 1) * DAY - now
    redis.call('SET', s.key, struct.pack('<BdI4', 81, s.day, s.used),
      'PX', ceil(left / 1000) + 1000)
  else
    redis.call('SET', s.key,
      struct.pack('<BddI4I4B', 87, s.newest, s.due, s.used, s.count, s.gap) .. s.packed,
      'PX', ceil(s.span / 1000) + 1000)
  end
end

local out = {now}
local n = 1
local first = 1
while first <= #KEYS do
  local last = first + tonumber(ARGV[4 * first])
  local group, verdict = {}, 0
  for i = first, last do
    local s = load(KEYS[i], tonumber(ARGV[4 * i - 2]))
    if not s then
      verdict = -2
      break
    end
    s.limit, s.units = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 1])
    group[i] = s
    local more = wait(s, s.units, s.limit)
    if more == -1 or verdict >= 0 and more > verdict then verdict = more end
  end
  n = n + 1
  out[n] = verdict
  for i = first, last do
    local s = group[i]
    if verdict == -2 then
      out[n + 1], out[n + 2] = 0, 0
    else
      if verdict == 0 and s.units ~= 0 then
        if s.units > 0 then add(s, s.units) else refund(s, -s.units, s.limit) end
        save(s)
      elseif s.moved then
        -- Else a refused caller's wait would begin anew with each try, after a step of the clock.
        save(s)
      end
      out[n + 1], out[n + 2] = s.used, reset(s, s.limit)
    end
    n = n + 2
  end
  first = last + 1
end
return out
