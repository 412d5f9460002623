"""Runs the scripts of envoy/lua/ in LuaJIT against a stand-in for Envoy's stream handle, with its scope rule:
what was taken before `body()` waited for the body must not be used after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lupa.luajit21 import LuaRuntime

from recursant.data import envoy_file

_HANDLE = rb"""
local function scoped(epoch, object)
  -- Envoy refuses objects that were taken before the script waited.
  return setmetatable({}, { __index = function(_, name)
    return function(_, ...)
      assert(epoch.mine == epoch.now.value, "object used outside of proper scope")
      return object[name](...)
    end
  end })
end

function run(headers, context, decision, text, on)
  local now = { value = 1 }
  local result = { headers = {}, metadata = {} }
  for name, value in pairs(headers) do
    result.headers[name] = value
  end
  local function object(methods)
    return scoped({ mine = now.value, now = now }, methods)
  end
  local handle = {}
  function handle:headers()
    return object({
      -- As Envoy does it: of what is not there no value comes, not even nil.
      get = function(name) if result.headers[name] ~= nil then return result.headers[name] end end,
      replace = function(name, value) result.headers[name] = value end,
      add = function(name, value) result.headers[name] = value end,
      remove = function(name) result.headers[name] = nil end,
    })
  end
  function handle:filterContext() return object({ get = function(name) return context[name] end }) end
  function handle:streamInfo()
    return object({ dynamicMetadata = function()
      return object({
        get = function(namespace)
          assert(namespace == "recursant")
          return decision
        end,
        set = function(namespace, key, value) result.metadata[namespace .. "/" .. key] = value end,
      })
    end })
  end
  function handle:body()
    now.value = now.value + 1
    if text == nil then return nil end
    return object({
      length = function() return #text end,
      getBytes = function(from, length) return string.sub(text, from + 1, from + length) end,
      setBytes = function(bytes) result.body = bytes end,
    })
  end
  function handle:base64Escape(bytes) return "base64:" .. bytes end
  function handle:respond(head, message)
    result.status = head[":status"]
    result.message = message
  end
  _G[on](handle)
  return result
end
"""


@dataclass(frozen=True)
class Outcome:
    """What a script did with a request."""

    headers: dict[str, str]
    metadata: dict[str, Any]
    body: bytes | None
    status: int | None
    message: str

    @property
    def passed(self) -> bool:
        return self.status is None


class Script:
    """One script, loaded once."""

    def __init__(self, name: str) -> None:
        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self._lua.execute(envoy_file(f"lua/{name}.lua").read_bytes())
        self._lua.execute(_HANDLE)
        self._run = self._lua.eval(b"run")

    def run(
        self,
        *,
        headers: Mapping[str, str],
        context: Mapping[str, Any] | None = None,
        decision: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        on: str = "envoy_on_request",
    ) -> Outcome:
        result = self._run(
            self._lua.table_from({key.encode(): value.encode("latin-1") for key, value in headers.items()}),
            self._table(context or {}),
            None if decision is None else self._table(decision),
            body,
            on.encode(),
        )
        status, message = result[b"status"], result[b"message"]
        return Outcome(
            headers={key.decode(): value.decode("latin-1") for key, value in result[b"headers"].items()},
            metadata={key.decode(): value for key, value in result[b"metadata"].items()},
            body=result[b"body"],
            status=None if status is None else int(status),
            message="" if message is None else message.decode(),
        )

    def _table(self, fields: Mapping[str, Any]) -> Any:
        encoded = {key.encode(): value.encode() if isinstance(value, str) else value for key, value in fields.items()}
        return self._lua.table_from(encoded)
