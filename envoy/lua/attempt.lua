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
  headers:add(MARK, "1")
  local length = tonumber(headers:get("content-length"))
  local text = nil
  if length ~= nil and length <= MAX_BODY_BYTES then
    local body = handle:body()
    if body ~= nil then
      text = body:getBytes(0, body:length())
    end
  end
  -- What was taken before the body came must not be used after it.
  local metadata = handle:streamInfo():dynamicMetadata()
  metadata:set(NAMESPACE, "failed", known.selected or "")
  if text ~= nil then
    metadata:set(NAMESPACE, "failed_body", handle:base64Escape(text))
  end
end
