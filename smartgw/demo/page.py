"""The page of the demo app: one self-contained document (contract 12.3).

Owns what the page looks like. It loads nothing from elsewhere, so it works without a network.
"""

from collections.abc import Iterable
from html import escape

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self' ws: wss:; base-uri 'none'; form-action 'self'"
)

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2530; --soft: #566373; --line: #d8dee6;
  --paper: #f6f8fa; --card: #fff; --accent: #0b6bcb; --on-accent: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8edf3; --soft: #a3b1c0; --line: #33404e;
  --paper: #141b23; --card: #1c252f; --accent: #6cb6ff; --on-accent: #10161d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
main { max-width: 46rem; margin: 0 auto; padding: 2.5rem 1.25rem; }
h1 { margin: 0; font-size: 2rem; letter-spacing: -.02em; overflow-wrap: anywhere; }
h2 { margin: 0 0 .75rem; font-size: 1.05rem; }
p { margin: .25rem 0 1rem; color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .75rem;
  padding: 1.25rem; margin-top: 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.25rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
dd, output, ol { font-family: ui-monospace, monospace; font-variant-numeric: tabular-nums; }
.pair { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); }
.row { display: flex; gap: .6rem; align-items: center; flex-wrap: wrap; }
button, input { font: inherit; padding: .45rem .8rem; border-radius: .5rem;
  border: 1px solid var(--line); background: transparent; color: inherit; min-width: 0; }
button { background: var(--accent); border-color: var(--accent); color: var(--on-accent);
  cursor: pointer; }
input { flex: 1 1 8rem; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
ol { list-style: none; margin: .75rem 0 0; padding: 0; height: 7.5rem; overflow: auto;
  font-size: .9rem; }
"""

_SCRIPT = """
const $ = id => document.getElementById(id);
const add = (list, text) => {
  const item = document.createElement("li"); item.textContent = text; list.prepend(item);
  while (list.children.length > 20) list.lastChild.remove();
};
$("add").addEventListener("submit", async event => {
  event.preventDefault();
  try {
    const answer = await fetch("/counter", { method: "POST" });
    if (!answer.ok) throw new Error(answer.status);
    $("count").textContent = (await answer.json()).count;
  } catch (error) { $("count").textContent = "not counted (" + error.message + ")"; }
});
const events = new EventSource("/sse");
events.onopen = () => { $("sse-state").textContent = "connected"; };
events.onerror = () => { $("sse-state").textContent = "away, trying again"; };
events.onmessage = event => {
  const tick = JSON.parse(event.data); add($("sse"), tick.time + "  " + tick.host_id);
};
let socket, wait = 500;
const connect = () => {
  socket = new WebSocket(location.origin.replace(/^http/, "ws") + "/ws");
  socket.onopen = () => { wait = 500; $("ws-state").textContent = "connected"; };
  socket.onmessage = event => add($("ws"), "echo: " + event.data);
  socket.onclose = () => {
    $("ws-state").textContent = "away, trying again"; setTimeout(connect, wait);
    wait = Math.min(wait * 2, 8000);
  };
};
connect();
$("say").addEventListener("submit", event => {
  event.preventDefault();
  if (socket.readyState === WebSocket.OPEN) socket.send($("text").value);
});
"""


def page(app_id: str, facts: Iterable[tuple[str, str]], count: int) -> str:
    """The document. `facts` are shown as they are given, in their order."""
    rows = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(app_id)} · Smart Gateway demo</title>
<style>{_STYLE}</style>
<main>
<h1>{escape(app_id)}</h1>
<p>Served by a host that announced itself and proved its key.</p>
<section aria-labelledby="who"><h2 id="who">This answer</h2>
<dl>
{rows}
</dl></section>
<section aria-labelledby="counting"><h2 id="counting">Counter of this cluster</h2>
<form id="add" class="row" action="/counter" method="post">
<output id="count" for="plus">{count}</output><button id="plus">Add one</button>
</form></section>
<div class="pair">
<section aria-labelledby="sse-title"><h2 id="sse-title">Server-sent events</h2>
<div role="status" id="sse-state">connecting</div><ol id="sse" tabindex="0"
aria-label="Latest events"></ol></section>
<section aria-labelledby="ws-title"><h2 id="ws-title">WebSocket</h2>
<div role="status" id="ws-state">connecting</div>
<form id="say" class="row"><label for="text">Say</label><input id="text" value="hello"
autocomplete="off"><button>Send</button></form><ol id="ws" tabindex="0"
aria-label="Latest messages"></ol></section>
</div>
</main>
<script>{_SCRIPT}</script>
</html>
"""
