"""Scripts that run inside the Redis server, each as one step that nothing can interrupt.

An unacknowledged message is kept as kombu's own transport keeps it (a hash by delivery tag, and a sorted set by time),
so that both transports can work on one queue and restore each other's messages.
"""

# KEYS: unacked, its index, then the lists of all queues for one priority after the other. ARGV: now, the most rows, the
# number of queues, the longest message in bytes, then the tags to acknowledge. A message whose headers have no `rows`
# counts as one. Rows are counted so that the worker which is first leaves parts of a list to the others.
# The answer has three values for a message: the number of its list, its tag, its text. An item that is no message has
# the tag "".
FETCH = """
local unacked, index = KEYS[1], KEYS[2]
local now, left, queues, longest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local out, failure = {}, nil

for i = 5, #ARGV do
  redis.call('HDEL', unacked, ARGV[i])
  redis.call('ZREM', index, ARGV[i])
end

local function parse(item)
  if #item > longest then return end
  local ok, message = pcall(cjson.decode, item)
  local properties = ok and type(message) == 'table' and message.properties
  local delivery = type(properties) == 'table' and properties.delivery_info
  if type(delivery) ~= 'table' or type(delivery.exchange) ~= 'string' then return end
  if type(delivery.routing_key) ~= 'string' or type(properties.delivery_tag) ~= 'string' then return end
  local rows = type(message.headers) == 'table' and tonumber(message.headers.rows) or 1
  return properties.delivery_tag, cjson.encode(delivery.exchange), cjson.encode(delivery.routing_key), math.max(rows, 1)
end

local function answer(key, tag, text)
  out[#out + 1] = key - 3
  out[#out + 1] = tag
  out[#out + 1] = text
end

local function take(key, count)
  local taken = 0
  while taken < count do
    local item = redis.pcall('RPOP', KEYS[key])
    if not item then break end
    if type(item) == 'table' then
      failure = item
      break
    end
    local tag, exchange, routing_key, rows = parse(item)
    taken = taken + (rows or 1)
    if tag and tag ~= '' then
      redis.call('ZADD', index, now, tag)
      redis.call('HSET', unacked, tag, '[' .. item .. ', ' .. exchange .. ', ' .. routing_key .. ']')
      answer(key, tag, item)
    else
      answer(key, '', string.sub(item, 1, 200))
    end
  end
  return taken
end

for first = 3, #KEYS, queues do
  local last = first + queues - 1
  for pass = 1, 2 do
    for key = first, last do
      if left > 0 then
        local share = pass == 1 and math.ceil(left / (last + 1 - key)) or left
        left = left - take(key, share)
      end
    end
  end
end
if failure and #out == 0 then return failure end
return out
"""

# KEYS: unacked, its index, then the lists. ARGV: for each message its tag, the number of its list, its text; the last
# message becomes the first in line. A message that goes to several lists comes as often, one after the other.
PUT_BACK = """
local tag, is_held
for i = 1, #ARGV, 3 do
  if ARGV[i] ~= tag then
    tag = ARGV[i]
    is_held = redis.call('HDEL', KEYS[1], tag) == 1
    redis.call('ZREM', KEYS[2], tag)
  end
  if is_held then
    redis.call('RPUSH', KEYS[tonumber(ARGV[i + 1]) + 3], ARGV[i + 2])
  end
end
"""

# KEYS: the bindings of an exchange, the deadlines of all. ARGV: the binding, the exchange, for how many ms it lives.
REFRESH_BINDING = """
redis.call('SADD', KEYS[1], ARGV[1])
local now = redis.call('TIME')
local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
redis.call('ZADD', KEYS[2], 'GT', ms + tonumber(ARGV[3]), ARGV[2])
"""

# KEYS: the deadlines. ARGV: what the keys of bindings begin with, the same of bindings that stay, the most exchanges.
SWEEP_BINDINGS = """
local now = redis.call('TIME')
local ms = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
for _, exchange in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms, 'LIMIT', 0, tonumber(ARGV[3]))) do
  if redis.call('EXISTS', ARGV[2] .. exchange) == 0 then
    redis.call('DEL', ARGV[1] .. exchange)
  end
  redis.call('ZREM', KEYS[1], exchange)
end
"""
