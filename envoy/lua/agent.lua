-- Before ext_proc: names the agent by path, and tidies the headers that the decision reads.
--
-- Static code. What differs by path comes in the route's filter context, pushed by RDS:
--   agent_id            the agent of this path (absent elsewhere)
--   allow_client_agent  a client's own X-Agent-ID wins here
--   request_id_bytes    the longest X-Request-ID that is passed on
--
-- A route that names an agent is that agent's own route already, so nothing needs to be routed again.

local find, lower = string.find, string.lower

-- One plain word: it ends up in log lines and in vLLM's own request ids.
local REQUEST_ID = "^[%w][%w%._:/+=-]*$"
-- What `curl -d` calls any body. No path of vLLM takes a form of this kind.
local FORM = "^application/x%-www%-form%-urlencoded"

local function name_agent(headers, context)
  local agent_id = context:get("agent_id")
  if agent_id == nil then
    return
  end
  local own = headers:get("x-agent-id")
  if own == nil or own == "" or not context:get("allow_client_agent") then
    headers:replace("x-agent-id", agent_id)
  end
end

-- extproc, or else the worker, makes a new id where this leaves none.
local function check_request_id(headers, context)
  local id = headers:get("x-request-id")
  if id ~= nil and (#id > context:get("request_id_bytes") or not find(id, REQUEST_ID)) then
    headers:remove("x-request-id")
  end
end

-- A body that does not say what it is, is JSON: everything else that vLLM takes does say.
local function name_body(headers)
  if headers:get(":method") ~= "POST" then
    return
  end
  local kind = headers:get("content-type")
  if kind ~= nil and kind ~= "" and not find(lower(kind), FORM) then
    return
  end
  -- The buffer filter before us gave a chunked body its length.
  local length = headers:get("content-length")
  if length ~= nil and length ~= "0" then
    headers:replace("content-type", "application/json")
  end
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local context = handle:filterContext()
  name_agent(headers, context)
  check_request_id(headers, context)
  name_body(headers)
end
