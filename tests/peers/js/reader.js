// KafkaJS, as a program of reader_programs.py, which says what it is to do.
'use strict'
const readline = require('node:readline')
const { Kafka, CompressionCodecs, CompressionTypes, logLevel } = require('kafkajs')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({ decompress: data => Buffer.from(require('lz4js').decompress(data)) })
CompressionCodecs[CompressionTypes.ZSTD] = () => ({ decompress: data => Buffer.from(require('fzstd').decompress(data)) })

const [command, bootstrap, isolation, ...args] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.WARN, logCreator: () => ({ log }) => console.error(JSON.stringify(log)) })
const print = line => console.log(JSON.stringify(line))
const base64 = bytes => (bytes === null ? null : bytes.toString('base64'))

function show(topic, partition, message) {
  const headers = Object.fromEntries(Object.entries(message.headers).map(([name, values]) => [name, [values].flat().map(base64)]))
  const { timestampType, partitionLeaderEpoch } = message.batchContext
  print({
    topic, partition, offset: Number(message.offset), timestamp: Number(message.timestamp),
    timestamp_type: ['CreateTime', 'LogAppendTime'][timestampType], leader_epoch: partitionLeaderEpoch,
    key: base64(message.key), value: base64(message.value), headers,
  })
}

function consumer(settings) {
  const found = kafka.consumer({ readUncommitted: isolation === 'read_uncommitted', maxWaitTimeInMs: 100, retry: { retries: 0 }, ...settings })
  found.on(found.events.CRASH, ({ payload }) => {
    console.error(payload.error)
    process.exit(1)
  })
  return found
}

/** Partitions are assigned by a group alone: it has one member. */
async function read(from, places) {
  const ends = new Map(places.map(place => place.split(':')).map(([topic, partition, end]) => [`${topic}:${partition}`, Number(end)]))
  const topics = [...new Set(places.map(place => place.split(':')[0]))]
  const reader = consumer({ groupId: `read-${process.pid}` })
  await reader.connect()
  await reader.subscribe({ topics, fromBeginning: true })
  await new Promise((resolve, reject) => {
    const eachMessage = async ({ topic, partition, message }) => {
      const place = `${topic}:${partition}`
      if (!ends.has(place)) return
      show(topic, partition, message)
      if (Number(message.offset) + 1 >= ends.get(place)) ends.delete(place)
      if (ends.size === 0) resolve()
    }
    reader.run({ autoCommit: false, eachMessage }).catch(reject)
    if (from !== 'beginning') seekToTime(reader, topics[0], Number(from)).catch(reject)
  })
  await reader.disconnect()
}

async function seekToTime(reader, topic, timestamp) {
  const admin = kafka.admin()
  await admin.connect()
  for (const { partition, offset } of await admin.fetchTopicOffsetsByTimestamp(topic, timestamp)) reader.seek({ topic, partition, offset })
  await admin.disconnect()
}

async function join(groupId, topic) {
  const member = consumer({ groupId, sessionTimeout: 20000, heartbeatInterval: 200 })
  let wanted = 0
  let ended = false
  let change = () => {}
  const printPartitions = partitions => print({ partitions: [...partitions].sort() })
  member.on(member.events.GROUP_JOIN, ({ payload }) => printPartitions(payload.memberAssignment[topic] ?? []))
  member.on(member.events.REBALANCING, () => printPartitions([]))
  await member.connect()
  await member.subscribe({ topics: [topic], fromBeginning: true })
  const eachBatch = async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
    for (const message of batch.messages) {
      while (wanted === 0 && !ended) {
        await Promise.race([new Promise(resolve => (change = resolve)), new Promise(resolve => setTimeout(resolve, 100))])
        await heartbeat()
      }
      if (ended || !isRunning() || isStale()) return
      show(topic, batch.partition, message)
      resolveOffset(message.offset)
      await member.commitOffsets([{ topic, partition: batch.partition, offset: String(Number(message.offset) + 1) }])
      if (--wanted === 0) print({ committed: true })
    }
  }
  await member.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch })
  for await (const request of readline.createInterface({ input: process.stdin })) {
    if (request === 'end') break
    wanted += Number(request.split(' ')[1])
    change()
  }
  ended = true
  change()
  process.stdin.destroy()
  await member.disconnect()
}

const running = command === 'read' ? read(args[0], args.slice(1)) : join(args[0], args[1])
running.catch(error => {
  console.error(error)
  process.exit(1)
})
