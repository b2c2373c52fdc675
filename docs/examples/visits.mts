// Visitors of a hall, by HTTP alone: `node visits.mjs http://127.0.0.1:7702 hall-1 5 ada bob eve` appends a visit of each, at the
// same time, and prints the first five as they come. With identities, add the header `Authorization: Bearer TOKEN`.
import { setTimeout } from "node:timers/promises";

interface Visit { version: number; data: { by: string } }

const [api, hall, wanted, ...visitors] = process.argv.slice(2);
const events = `${api}/api/aggregates/${encodeURIComponent(hall)}/events`;

/** Appends on what was read. The command has one id however often it is sent: it is stored once. */
async function visit(by: string): Promise<void> {
  const headers = { "Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID() };
  for (;;) {
    const stored = await (await fetch(`${events}?limit=1000`)).json();
    const body = JSON.stringify({ events: [{ type: "Visited", data: { by } }], expected_version: stored.events.length });
    const answer = await fetch(events, { method: "POST", headers, body });
    if (answer.ok) return;
    if (answer.status !== 409) throw new Error(await answer.text()); // 409: somebody else was there first
  }
}

/** Yields what is stored, then what comes; after a lost connection it continues behind the last position. */
async function* follow(): AsyncGenerator<Visit> {
  for (let position = "0"; ; await setTimeout(200)) {
    const headers = { Accept: "text/event-stream", "Last-Event-ID": position };
    try {
      const stream = await fetch(`${api}/api/events?prefix=${hall}`, { headers });
      let rest = "";
      for await (const part of stream.body!.pipeThrough(new TextDecoderStream())) {
        const blocks = (rest + part).split("\n\n");
        rest = blocks.pop()!;
        for (const block of blocks) {
          const field = (name: string) => block.match(new RegExp(`^${name}: (.*)$`, "m"))?.[1];
          position = field("id") ?? position;
          if (field("data") && !field("event")) yield JSON.parse(field("data")!);
        }
      }
    } catch {} // the server is away
  }
}

await Promise.all(visitors.map(visit));
for await (const each of follow()) {
  console.log(each.version, each.data.by);
  if (each.version >= Number(wanted)) process.exit(0);
}
