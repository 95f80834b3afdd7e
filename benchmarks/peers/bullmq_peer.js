// BullMQ: one process, jobs one at a time (8 for 10 ms, 100 for async), removed when completed.
const fs = require("fs");
const readline = require("readline");
const IORedis = require("ioredis");
const { Queue, Worker } = require("bullmq");

const PACKAGES = ["bullmq", "ioredis"];
const KINDS = ["noop", "ten_ms", "async", "pickup", "long"];
const EVERY = { noop: 50, async: 10 };
const CHUNK = 50; // jobs between two looks at the clock
const notes = process.env.PEER_NOTES;
const connection = new IORedis(process.env.PEER_URL.replace("unix://", ""), {
  maxRetriesPerRequest: null,
});
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const now = () => (performance.timeOrigin + performance.now()) / 1000;

const worker = (kind) => [process.execPath, __filename, "work", kind];

function isFirst() {
  try {
    fs.closeSync(fs.openSync(notes + ".long", "wx"));
    return true;
  } catch {
    return false;
  }
}

function work(kind) {
  const file = fs.openSync(notes, "a");
  const perform = async (job) => {
    const [ofJob, number] = job.data;
    if (ofJob === "ten_ms" || ofJob === "async") await sleep(10);
    if (number % (EVERY[ofJob] || 1) === 0) {
      fs.writeSync(file, `${number} ${now()} ${process.pid} ${process.pid}\n`);
    }
    if (ofJob === "long" && isFirst()) await sleep(600_000);
  };
  new Worker("peer", perform, { connection, concurrency: { ten_ms: 8, async: 100 }[kind] || 1 });
}

async function fill(queue, { kind, first, jobs, seconds, pause }) {
  const called = [];
  const begun = performance.now();
  let number = first;
  while (number < first + jobs) {
    if (pause) {
      await sleep(pause * 1000);
      called.push(now());
    }
    await queue.add("work", [kind, number]);
    if (number++ % CHUNK === 0 && performance.now() - begun > seconds * 1000) break;
  }
  const done = number - first;
  return { jobs: done, rate: (done / (performance.now() - begun)) * 1000, called };
}

async function enqueue() {
  const queue = new Queue("peer", { connection, defaultJobOptions: { removeOnComplete: true } });
  await queue.add("work", ["noop", -1]); // opens the connection
  const { version } = require("bullmq/package.json");
  const workers = Object.fromEntries(KINDS.map((kind) => [kind, worker(kind)]));
  console.log(JSON.stringify({ version, workers }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(JSON.stringify(await fill(queue, JSON.parse(line))));
  }
  process.exit();
}

if (process.argv[2] === "work") work(process.argv[3]);
else enqueue();
