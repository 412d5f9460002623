-- After ext_proc: checks a JSON body, and makes the edits that the decision asks for (DESIGN §4.4).
--
-- What to do comes from ext_proc's dynamic metadata, or, while extproc is away, from the route's filter context:
--   model           what a top-level "model": "auto" becomes
--   allowed_models  the names that "model" may have, ",a,b,"; absent: any
--   replaced_models names that become `model`, too: another family stands in for theirs
--   priority        the value of the top-level "priority", set or added
--   max_tokens      the most tokens of output: a larger bound of the client's is lowered, and one is added where an
--                   answer would have none; which of the two is left in the metadata as `clamped`
--
-- Every other byte stays as it came. The body is scanned, not parsed: nothing is built from it.

local byte, find, format, gsub, lower, match, sub =
  string.byte, string.find, string.format, string.gsub, string.lower, string.match, string.sub
local concat = table.concat

local NAMESPACE = "recursant"
local AUTO = "auto"
-- Beyond what any request needs; Python's own parser, behind us in the worker, gives up at about 1,000.
local MAX_DEPTH = 512
local SHOWN_NAME = 128

-- The top-level keys that matter here; their longest spelling escapes each letter in six bytes.
local KEYS = {
  model = true, priority = true, messages = true, prompt = true,
  max_tokens = true, max_completion_tokens = true, max_output_tokens = true, min_tokens = true,
}
local LONGEST_KEY = 6 * #"max_completion_tokens"
-- Held to the bound wherever they stand: more than the bound at the least would be refused.
local LIMITS = { "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens" }
-- The bounds that each kind of request knows, the one to add first, and what vLLM takes where none is said.
local CHAT = { "max_tokens", "max_completion_tokens", default = math.huge }
local COMPLETION = { "max_tokens", default = 16 }
local RESPONSE = { "max_output_tokens", default = math.huge }
-- Last parts of the paths whose requests generate nothing.
local NO_OUTPUT = {
  tokenize = true, detokenize = true, embeddings = true, embed = true, pooling = true, score = true, rerank = true,
  classify = true,
}

local TAB, LF, CR, SPACE, QUOTE, COMMA, MINUS, DOT = 9, 10, 13, 32, 34, 44, 45, 46
local ZERO, NINE, COLON, UPPER_E, OPEN_ARRAY, BACKSLASH, CLOSE_ARRAY = 48, 57, 58, 69, 91, 92, 93
local LOWER_E, LOWER_F, LOWER_N, LOWER_T, LOWER_U, OPEN_OBJECT, CLOSE_OBJECT = 101, 102, 110, 116, 117, 123, 125

-- The byte after a backslash, and what the two stand for.
local ESCAPES = {
  [34] = '"', [47] = "/", [92] = "\\", [98] = "\b", [102] = "\f", [110] = "\n", [114] = "\r", [116] = "\t",
}

-- From the byte after an opening quote to the closing one: its position, and whether something is escaped between.
-- nil: the string does not end, holds a raw control character or a bad escape.
local function string_end(text, pos)
  local escaped = false
  while true do
    local c = byte(text, pos)
    if c == QUOTE then
      return pos, escaped
    elseif c == BACKSLASH then
      escaped = true
      local kind = byte(text, pos + 1)
      if kind == LOWER_U then
        if not find(text, "^%x%x%x%x", pos + 2) then
          return nil
        end
        pos = pos + 6
      elseif ESCAPES[kind or 0] then
        pos = pos + 2
      else
        return nil
      end
    elseif c == nil or c < SPACE then
      return nil
    else
      pos = pos + 1
    end
  end
end

-- The first position from `pos` on that holds no digit.
local function digits_end(text, pos)
  local c = byte(text, pos)
  while c and c >= ZERO and c <= NINE do
    pos = pos + 1
    c = byte(text, pos)
  end
  return pos
end

-- The position after the number that starts at `pos`; nil where none does.
local function number_end(text, pos)
  if byte(text, pos) == MINUS then
    pos = pos + 1
  end
  local after = digits_end(text, pos)
  -- At least one digit, and no leading zero.
  if after == pos or (after > pos + 1 and byte(text, pos) == ZERO) then
    return nil
  end
  pos = after
  if byte(text, pos) == DOT then
    after = digits_end(text, pos + 1)
    if after == pos + 1 then
      return nil
    end
    pos = after
  end
  local c = byte(text, pos)
  if c == LOWER_E or c == UPPER_E then
    local sign = byte(text, pos + 1)
    pos = pos + ((sign == MINUS or sign == 43) and 2 or 1)
    after = digits_end(text, pos)
    if after == pos then
      return nil
    end
    pos = after
  end
  return pos
end

-- The position after the value that starts at `pos` and has no parts; nil where none does.
local function scalar_end(text, pos, first)
  if first == QUOTE then
    local closing = string_end(text, pos + 1)
    return closing and closing + 1
  elseif first == LOWER_T then
    return sub(text, pos, pos + 3) == "true" and pos + 4 or nil
  elseif first == LOWER_F then
    return sub(text, pos, pos + 4) == "false" and pos + 5 or nil
  elseif first == LOWER_N then
    return sub(text, pos, pos + 3) == "null" and pos + 4 or nil
  end
  return number_end(text, pos)
end

local function utf8(code)
  if code < 0x80 then
    return string.char(code)
  elseif code < 0x800 then
    return string.char(0xC0 + math.floor(code / 0x40), 0x80 + code % 0x40)
  elseif code < 0x10000 then
    return string.char(0xE0 + math.floor(code / 0x1000), 0x80 + math.floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
  end
  return string.char(
    0xF0 + math.floor(code / 0x40000),
    0x80 + math.floor(code / 0x1000) % 0x40,
    0x80 + math.floor(code / 0x40) % 0x40,
    0x80 + code % 0x40
  )
end

-- The text of a checked string without its quotes. A lone surrogate gives bytes that equal no name.
local function unescape(raw)
  local parts = {}
  local pos = 1
  while true do
    local at = find(raw, "\\", pos, true)
    if not at then
      parts[#parts + 1] = sub(raw, pos)
      return concat(parts)
    end
    parts[#parts + 1] = sub(raw, pos, at - 1)
    local kind = byte(raw, at + 1)
    pos = at + 2
    if kind == LOWER_U then
      local code = tonumber(sub(raw, pos, pos + 3), 16)
      pos = pos + 4
      local low = code >= 0xD800 and code < 0xDC00 and match(raw, "^\\u([dD][c-fC-F]%x%x)", pos)
      if low then
        code = 0x10000 + (code - 0xD800) * 0x400 + (tonumber(low, 16) - 0xDC00)
        pos = pos + 6
      end
      parts[#parts + 1] = utf8(code)
    else
      parts[#parts + 1] = ESCAPES[kind]
    end
  end
end

-- Our name for the key whose text is text[from..to], quotes left out; nil for any other key.
local function wanted_key(text, from, to, escaped)
  if to - from >= LONGEST_KEY then
    return nil
  end
  local key = sub(text, from, to)
  if escaped then
    key = unescape(key)
  end
  return KEYS[key] and key or nil
end

-- Checks that `text` is one JSON object. Gives where its top-level values of our keys are, each list as from, to,
-- from, to..., and the position of its first member or closing brace; or nil and what is wrong.
local function scan(text)
  local found = {}
  for name in pairs(KEYS) do
    found[name] = {}
  end
  local closers = {}
  local depth = 0
  -- A UTF-8 byte order mark, which the worker's parser skips, too.
  local pos = sub(text, 1, 3) == "\239\187\191" and 4 or 1
  pos = find(text, "[^ \t\r\n]", pos)
  if not pos then
    return nil, "the request body is empty"
  elseif byte(text, pos) ~= OPEN_OBJECT then
    return nil, "the request body must be a JSON object"
  end
  local first
  -- The newest top-level key, if it is one of ours, and where its value starts.
  local key, start
  -- What may come: a value, after "[" also its end; a key, after "{" also its end; or what follows a value.
  local want_value, want_key, may_close = true, false, false
  while true do
    local c = byte(text, pos)
    if c == SPACE or c == LF or c == CR or c == TAB then
      pos = pos + 1
    elseif c == nil then
      break
    elseif want_key and c == QUOTE then
      local closing, escaped = string_end(text, pos + 1)
      if not closing then
        break
      end
      if depth == 1 then
        key = wanted_key(text, pos + 1, closing - 1, escaped)
      end
      pos = find(text, "[^ \t\r\n]", closing + 1)
      if not pos or byte(text, pos) ~= COLON then
        break
      end
      pos = pos + 1
      want_key, want_value, may_close = false, true, false
    elseif (may_close or not (want_key or want_value)) and c == closers[depth] then
      depth = depth - 1
      pos = pos + 1
      want_key, want_value, may_close = false, false, false
      if depth == 0 then
        pos = find(text, "[^ \t\r\n]", pos)
        if pos then
          break
        end
        found.first = first
        return found
      elseif depth == 1 and key then
        local spans = found[key]
        spans[#spans + 1] = start
        spans[#spans + 1] = pos - 1
      end
    elseif not (want_key or want_value) then
      if c ~= COMMA then
        break
      end
      pos = pos + 1
      want_key = closers[depth] == CLOSE_OBJECT
      want_value = not want_key
    elseif want_key then
      break
    elseif c == OPEN_OBJECT or c == OPEN_ARRAY then
      if depth == 1 then
        start = pos
      end
      depth = depth + 1
      if depth > MAX_DEPTH then
        return nil, "the request body is nested too deeply"
      end
      pos = pos + 1
      if depth == 1 then
        first = pos
      end
      closers[depth] = c == OPEN_OBJECT and CLOSE_OBJECT or CLOSE_ARRAY
      want_key, want_value, may_close = c == OPEN_OBJECT, c == OPEN_ARRAY, true
    else
      local after = scalar_end(text, pos, c)
      if not after then
        break
      end
      if depth == 1 and key then
        local spans = found[key]
        spans[#spans + 1] = pos
        spans[#spans + 1] = after - 1
      end
      pos = after
      want_value, may_close = false, false
    end
  end
  return nil, "the request body is not valid JSON"
end

-- `name` as a JSON string.
local function quoted(name)
  return '"' .. gsub(name, '[%c"\\]', function(c)
    return format("\\u%04x", byte(c))
  end) .. '"'
end

-- `name` as an error message may show it.
local function shown(name)
  return (gsub(sub(name, 1, SHOWN_NAME), "[^\32-\126]", "?"))
end

-- The edits that "model" needs, as replacements by position; or nil, a status and what is wrong.
local function edit_model(text, spans, wanted, edits)
  for i = 1, #spans, 2 do
    local from, to = spans[i], spans[i + 1]
    if byte(text, from) ~= QUOTE then
      -- null is what vLLM takes for "your own".
      if sub(text, from, to) ~= "null" then
        return nil, "400", "model must be a string"
      end
    else
      local name = sub(text, from + 1, to - 1)
      if find(name, "\\", 1, true) then
        name = unescape(name)
      end
      -- The lists are joined by commas: a name that holds one is in neither.
      local plain = not find(name, ",", 1, true)
      if name == AUTO or (wanted.replaced and plain and find(wanted.replaced, "," .. name .. ",", 1, true)) then
        if wanted.model then
          edits[#edits + 1] = { from, to, quoted(wanted.model) }
        end
      elseif name ~= "" and wanted.allowed then
        if not plain or not find(wanted.allowed, "," .. name .. ",", 1, true) then
          local allowed = gsub(sub(wanted.allowed, 2, -2), ",", ", ")
          return nil, "403", format("this agent may not use the model '%s'; allowed are %s", shown(name), shown(allowed))
        end
      end
    end
  end
  return edits
end

local function edit_priority(text, found, priority, edits)
  local value = format("%d", priority)
  local spans = found.priority
  for i = 1, #spans, 2 do
    edits[#edits + 1] = { spans[i], spans[i + 1], value }
  end
  if #spans == 0 then
    local empty = byte(text, find(text, "[^ \t\r\n]", found.first)) == CLOSE_OBJECT
    edits[#edits + 1] = { found.first, found.first - 1, '"priority":' .. value .. (empty and "" or ",") }
  end
end

-- The number that a value of a bound stands for: the worker's parser takes strings of digits, too. nil: for none.
local function number_of(text, from, to)
  local c = byte(text, from)
  if c == QUOTE then
    local said = unescape(sub(text, from + 1, to - 1))
    -- Whatever else has digits in it, a lenient parser may read as any number.
    return tonumber(match(said, "^%d+$")) or (find(said, "%d") and math.huge) or nil
  elseif c == MINUS or (c >= ZERO and c <= NINE) then
    return tonumber((match(sub(text, from, to), "^%S+")))
  end
end

-- The kinds of requests that a body may be: by its path, or, where that is an agent's own, by what it holds.
local function kinds_of(found, path)
  if find(path, "/chat/completions$") then
    return { CHAT }
  elseif find(path, "/completions$") then
    return { COMPLETION }
  elseif find(path, "/responses$") then
    return { RESPONSE }
  elseif NO_OUTPUT[match(path, "[^/]*$")] then
    return {}
  end
  local kinds = {}
  if #found.messages > 0 then
    kinds[1] = CHAT
  end
  if #found.prompt > 0 then
    kinds[#kinds + 1] = COMPLETION
  end
  return kinds
end

-- Bounds a request of one kind where it has no bound of its own.
local function add_limit(text, found, kind, bound, edits)
  local nulls = {}
  for _, name in ipairs(kind) do
    local spans = found[name]
    -- Of equal keys the last one counts.
    local from, to = spans[#spans - 1], spans[#spans]
    if from and byte(text, from) == LOWER_N then
      nulls[#nulls + 1] = { from, to, format("%d", bound) }
    elseif from and number_of(text, from, to) then
      return false
    end
  end
  if #nulls > 0 then
    for _, edit in ipairs(nulls) do
      edits[#edits + 1] = edit
    end
    return true
  elseif bound < kind.default then
    edits[#edits + 1] = { found.first, found.first - 1, format('"%s":%d,', kind[1], bound) }
    return true
  end
  return false
end

-- Holds the output to `bound` tokens. Gives "lowered" or "added", or nil where nothing had to be done.
local function edit_limits(text, found, path, bound, edits)
  local done
  for _, name in ipairs(LIMITS) do
    local spans = found[name]
    for i = 1, #spans, 2 do
      local number = number_of(text, spans[i], spans[i + 1])
      if number and number > bound then
        edits[#edits + 1] = { spans[i], spans[i + 1], format("%d", bound) }
        done = "lowered"
      end
    end
  end
  for _, kind in ipairs(kinds_of(found, path)) do
    if add_limit(text, found, kind, bound, edits) then
      done = done or "added"
    end
  end
  return done
end

-- `text` with the edits made; each is {from, to, replacement}, and none overlap.
local function applied(text, edits)
  table.sort(edits, function(a, b)
    return a[1] < b[1]
  end)
  local parts = {}
  local pos = 1
  for _, edit in ipairs(edits) do
    parts[#parts + 1] = sub(text, pos, edit[1] - 1)
    parts[#parts + 1] = edit[3]
    pos = edit[2] + 1
  end
  parts[#parts + 1] = sub(text, pos)
  return concat(parts)
end

-- What the decision asks for. Without extproc's word the route's own, and a mark for the control plane's count.
local function wanted_by(handle)
  local metadata = handle:streamInfo():dynamicMetadata()
  local decision = metadata:get(NAMESPACE)
  if decision ~= nil then
    return {
      model = decision.model,
      allowed = decision.allowed_models,
      replaced = decision.replaced_models,
      priority = decision.priority,
      max_tokens = decision.max_tokens,
    }
  end
  metadata:set(NAMESPACE, "fail_open", true)
  local context = handle:filterContext()
  return {
    model = context:get("model"),
    allowed = context:get("allowed_models"),
    priority = context:get("priority"),
    max_tokens = context:get("max_tokens"),
  }
end

local function is_json(kind)
  local media_type = lower(match(kind, "^%s*([^;%s]*)"))
  return media_type == "application/json" or find(media_type, "%+json$") ~= nil
end

local function refuse(handle, status, message)
  -- local_reply_config gives it OpenAI's shape.
  handle:respond({ [":status"] = status }, message)
end

function envoy_on_request(handle)
  local wanted = wanted_by(handle)
  local headers = handle:headers()
  local kind = headers:get("content-type")
  local path = headers:get(":path") or ""
  if headers:get(":method") ~= "POST" or kind == nil or not is_json(kind) then
    return
  end
  local encoding = headers:get("content-encoding")
  if encoding ~= nil and lower(encoding) ~= "identity" then
    return refuse(handle, "415", "a JSON body must come without content-encoding")
  end
  local body = handle:body()
  if body == nil then
    return refuse(handle, "400", "the request body is empty")
  end
  local text = body:getBytes(0, body:length())
  local found, problem = scan(text)
  if not found then
    return refuse(handle, "400", problem)
  end
  local edits, status, message = edit_model(text, found.model, wanted, {})
  if not edits then
    return refuse(handle, status, message)
  end
  if wanted.priority then
    edit_priority(text, found, wanted.priority, edits)
  end
  if wanted.max_tokens then
    local clamped = edit_limits(text, found, match(path, "^[^?#]*"), wanted.max_tokens, edits)
    if clamped then
      handle:streamInfo():dynamicMetadata():set(NAMESPACE, "clamped", clamped)
    end
  end
  if #edits > 0 then
    body:setBytes(applied(text, edits))
  end
end
