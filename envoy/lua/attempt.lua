-- At each attempt's end, between the router and the worker: one more try for a 500 (docs/adr/0004-retries.md).
--
-- The first 500 that a request meets gets a mark, which the route's retry policy looks for; a second one gets none, so
-- that a request which breaks engines meets one more of them, not all. What the first one said would be lost with its
-- attempt, so it is left in the dynamic metadata, for ext_proc to judge the worker by:
--   failed       the worker's address
--   failed_body  the answer, base64; absent where it is long or does not say its length

local NAMESPACE = "recursant"
local MARK = "x-recursant-again"
-- As much as ext_proc looks at of an error (recursant/fleet/engine_errors.py).
local MAX_BODY_BYTES = 16384

function envoy_on_response(handle)
  local headers = handle:headers()
  -- Ours alone to set: a worker's own would have its answers sent again.
  headers:remove(MARK)
  if headers:get(":status") ~= "500" then
    return
  end
  local known = handle:streamInfo():dynamicMetadata():get(NAMESPACE) or {}
  if known.failed ~= nil then
    return
  end
  -- Before anything that can go wrong: a body that breaks off must not let the next attempt count as the first.
  handle:streamInfo():dynamicMetadata():set(NAMESPACE, "failed", known.selected or "")
  headers:add(MARK, "1")
  -- `get` gives no value, not even nil, for what is not there.
  local said = headers:get("content-length")
  local length = said and tonumber(said)
  if length == nil or length > MAX_BODY_BYTES then
    return
  end
  local body = handle:body()
  if body ~= nil then
    local text = handle:base64Escape(body:getBytes(0, body:length()))
    -- What was taken before the body came must not be used after it.
    handle:streamInfo():dynamicMetadata():set(NAMESPACE, "failed_body", text)
  end
end
