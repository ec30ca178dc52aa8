//! Capture files as a port: packets of the input file are received, sent packets go to the output file.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::{Burst, Flags, MAX_BATCH, Mempool, Packet};
use ringpass_port::{
    Error, Link, MAX_L2_HEADER_LEN, PcapConfig, Port, PortConfig, PortStatus, QueuePair, ReplaySpeed, RxQueue,
    SoftwareOffload, State, Stats, TxQueue, WakeSource, Wakeable, fits_mtu, frame_fits_mtu,
};

use crate::buffers::SparePackets;
use crate::capture_file::{Count, Direction, Reader, Writer, now};

/// The port `pcap:FILE`, `pcap:,out=FILE`, or both.
pub struct Pcap {
    name: String,
    status: Arc<PortStatus>,
    finished: Arc<AtomicBool>,
    queues: Vec<QueuePair>,
    notes: Vec<String>,
}

struct Rx {
    /// The input; `None` if there is none, or after its end.
    input: Option<Input>,
    /// How the input ended. Reported by the next call of `rx_burst`, when the last packets have been processed.
    end: Option<Result<(), Error>>,
    buffers: SparePackets,
    status: Arc<PortStatus>,
    finished: Arc<AtomicBool>,
    mtu: usize,
    /// Timestamps of the packets of the last burst.
    times: Vec<u64>,
}

struct Input {
    reader: Reader,
    /// Passes after the present one; `None` for no limit.
    repeat: Option<u32>,
    speed: ReplaySpeed,
    /// Start of the present pass: the time now, and the timestamp of its first packet.
    began: Option<(Instant, u64)>,
    /// A packet that was read but is not due yet.
    pending: Option<(u64, Packet)>,
    /// Buffers that the longest frame takes.
    buffers: usize,
    /// Whether this pass has delivered a packet.
    delivered: bool,
}

struct Tx {
    /// The output; `None` if there is none, or after a write error.
    writer: Option<Writer>,
    /// Frames that are in the file and in the statistics.
    counted: Count,
    /// When everything was last flushed to the kernel, in nanoseconds since 1970.
    flushed: u64,
    status: Arc<PortStatus>,
    mtu: usize,
}

impl Tx {
    /// How long a frame may wait for further ones, in nanoseconds, so that readers who follow the file see it.
    const FLUSH_INTERVAL: u64 = 1_000_000_000;

    /// Updates the statistics with what is in the file now. After a write error, frames that were taken but not
    /// written count as dropped.
    fn update_counters(&mut self, result: Result<(), Error>) {
        let Some(writer) = &self.writer else { return };
        let written = writer.written();
        let [packets, bytes] = [written.packets - self.counted.packets, written.bytes - self.counted.bytes];
        let lost = if result.is_err() { writer.unwritten().packets } else { 0 };
        self.status.tx(0).count(packets as usize, bytes as usize, lost as usize);
        self.counted = written;
        if let Err(error) = result {
            self.status.set_gone(|| error.to_string());
            self.writer = None;
        }
    }
}

impl Pcap {
    /// Opens the input and checks its format, then creates the output. The port has one queue pair.
    pub fn open(config: &PcapConfig, port: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let path = config.input.as_deref().or(config.output.as_deref()).unwrap_or(Path::new(""));
        let name = format!("pcap:{}", path.display());
        if port.queues > 1 {
            return Err(Error::Config(format!("{name}: a capture file has one queue; leave out --queues")));
        }
        let reader = config.input.as_deref().map(Reader::open).transpose()?;
        let canonical = |path: &Option<std::path::PathBuf>| path.as_deref().and_then(|path| path.canonicalize().ok());
        if config.input.is_some() && canonical(&config.output).is_some_and(|out| canonical(&config.input) == Some(out))
        {
            return Err(Error::Config(format!("{name}: input and output are the same file; name another output")));
        }
        let writer = config.output.as_deref().map(Writer::create).transpose()?;

        let notes = match (&config.input, &config.output) {
            (None, Some(_)) => vec!["nothing is received: there is no input".into()],
            (Some(_), None) => vec!["what is sent is dropped; to keep it: pcap:FILE,out=FILE".into()],
            _ => Vec::new(),
        };
        let status = Arc::new(PortStatus::new(1));
        let finished = Arc::new(AtomicBool::new(false));
        let buffers = SparePackets::of(pool, MAX_L2_HEADER_LEN + port.mtu)?;
        let input = reader.map(|reader| Input {
            reader,
            repeat: config.repeat.checked_sub(1),
            speed: config.speed,
            began: None,
            pending: None,
            buffers,
            delivered: false,
        });
        let rx = Rx {
            input,
            end: None,
            buffers: SparePackets::new(pool),
            status: status.clone(),
            finished: finished.clone(),
            mtu: port.mtu,
            times: Vec::with_capacity(MAX_BATCH),
        };
        let tx = Tx { writer, counted: Count::default(), flushed: now(), status: status.clone(), mtu: port.mtu };
        let tx = SoftwareOffload::new(tx, Flags::default(), pool);
        let queues = vec![QueuePair { rx: Box::new(rx), tx: Box::new(tx) }];
        Ok(Self { name, status, finished, queues, notes })
    }
}

/// Result of reading the next packet.
enum Next {
    Packet(u64, Packet),
    /// The packet is longer than the MTU allows.
    Dropped,
    /// The file starts again.
    Again,
    /// No buffer is free.
    NoBuffer,
    End,
}

impl Input {
    fn next(&mut self, buffers: &mut SparePackets, mtu: usize) -> Result<Next, Error> {
        if buffers.ready(self.buffers).is_none() {
            return Ok(Next::NoBuffer);
        }
        if let Some(record) = self.reader.next()? {
            if !frame_fits_mtu(record.bytes, record.bytes.len(), mtu) {
                return Ok(Next::Dropped);
            }
            let Some(packet) = buffers.fill([record.bytes]) else { return Ok(Next::Dropped) };
            self.delivered = true;
            return Ok(Next::Packet(record.nanos, packet));
        }
        // A file without a single valid frame would be read for ever.
        if self.repeat == Some(0) || !self.delivered {
            return Ok(Next::End);
        }
        self.repeat = self.repeat.map(|repeat| repeat - 1);
        (self.began, self.delivered) = (None, false);
        self.reader.rewind()?;
        Ok(Next::Again)
    }

    /// Returns whether a packet with this timestamp is due. `clock` holds the present time for the whole burst;
    /// the first packet of a pass starts the pass.
    fn due(&mut self, clock: &mut Option<Instant>, nanos: u64) -> bool {
        let ReplaySpeed::Recorded(factor) = self.speed else { return true };
        let now = *clock.get_or_insert_with(Instant::now);
        let (start, first) = *self.began.get_or_insert((now, nanos));
        nanos.saturating_sub(first) as f64 <= now.duration_since(start).as_nanos() as f64 * factor
    }

    /// Returns when the packet that was already read is due.
    fn next_due(&self) -> Option<Instant> {
        let (ReplaySpeed::Recorded(factor), Some((nanos, _))) = (self.speed, &self.pending) else { return None };
        let (start, first) = self.began?;
        // Rounded up, so that the packet is due when the time comes.
        let wait = nanos.saturating_sub(first) as f64 / factor + 1.0;
        start.checked_add(Duration::try_from_secs_f64(wait / 1e9).ok()?)
    }
}

impl Wakeable for Rx {
    fn wake_sources<'a>(&'a self, each: &mut dyn FnMut(WakeSource<'a>)) {
        each(match &self.input {
            Some(input) => input.next_due().map_or(WakeSource::Polled, WakeSource::At),
            // The end is reported by the next `rx_burst`.
            None if self.end.is_some() => WakeSource::Polled,
            None => WakeSource::Never,
        });
    }
}

impl RxQueue for Rx {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        match self.end.take() {
            Some(Ok(())) => self.finished.store(true, Ordering::Release),
            Some(Err(error)) => self.status.set_gone(|| error.to_string()),
            None => {}
        }
        self.times.clear();
        let Some(input) = &mut self.input else { return 0 };
        let mut packets = 0;
        let mut bytes = 0;
        let mut drops = 0;
        let mut clock = None;
        for _ in 0..burst.room() {
            let (nanos, packet) = match input.pending.take() {
                Some(pending) => pending,
                None => match input.next(&mut self.buffers, self.mtu) {
                    Ok(Next::Packet(nanos, packet)) => (nanos, packet),
                    Ok(Next::Dropped) => {
                        drops += 1;
                        continue;
                    }
                    Ok(Next::Again) => continue,
                    Ok(Next::NoBuffer) => break,
                    Ok(Next::End) => {
                        self.end = Some(Ok(()));
                        break;
                    }
                    Err(error) => {
                        self.end = Some(Err(error));
                        break;
                    }
                },
            };
            if !input.due(&mut clock, nanos) {
                input.pending = Some((nanos, packet));
                break;
            }
            (packets, bytes) = (packets + 1, bytes + packet.total_len());
            burst.push(packet);
            self.times.push(nanos);
        }
        if self.end.is_some() {
            self.input = None;
        }
        if packets + drops > 0 {
            self.status.rx(0).count(packets, bytes, drops);
        }
        packets
    }

    fn rx_timestamps(&self) -> &[u64] {
        &self.times
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let (taken, time) = (burst.len(), now());
        let mut put = 0;
        if let Some(writer) = &mut self.writer {
            let mut result = Ok(());
            for packet in burst.iter().filter(|packet| fits_mtu(packet, self.mtu)) {
                put += 1;
                result = writer.write_packet(time, Direction::Sent, packet, usize::MAX);
                if result.is_err() {
                    break;
                }
            }
            if result.is_ok() && time.saturating_sub(self.flushed) > Self::FLUSH_INTERVAL {
                (result, self.flushed) = (writer.flush(), time);
            }
            self.update_counters(result);
        }
        burst.clear();
        if taken > put {
            self.status.tx(0).count(0, 0, taken - put);
        }
        taken
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let result = self.writer.as_mut().map_or(Ok(()), Writer::flush);
        self.update_counters(result);
    }
}

impl Port for Pcap {
    fn name(&self) -> &str {
        &self.name
    }

    fn link(&mut self) -> Link {
        Link { up: !self.status.is_gone(), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.status.stats()
    }

    fn queue_stats(&mut self) -> Vec<Stats> {
        self.status.queue_stats()
    }

    fn state(&mut self) -> State {
        match self.status.state() {
            State::Running if self.finished.load(Ordering::Acquire) => State::Finished,
            state => state,
        }
    }

    fn take_queues(&mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.queues)
    }

    fn finish(&mut self) -> Result<(), Error> {
        match self.status.state() {
            State::Gone(why) => Err(Error::Gone(why)),
            State::Running | State::Finished => Ok(()),
        }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
