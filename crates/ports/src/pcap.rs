//! Capture files as a port: received is what the input holds, sent is what goes to the output.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::{Burst, Flags, MAX_BATCH, Mempool, Packet};
use ringpass_port::{
    Error, LONGEST_HEADER, Link, MacAddress, PcapConfig, Port, PortConfig, Queues, ReplaySpeed, RxQueue, Software,
    State, Stats, Status, TxQueue, Wake, Wakeable, frame_passes, passes,
};

use crate::buffers::Buffers;
use crate::capture_file::{Count, Direction, Reader, Writer, now};

/// `pcap:FILE`, `pcap:,out=FILE`, or both.
pub struct Pcap {
    name: String,
    status: Arc<Status>,
    finished: Arc<AtomicBool>,
    queues: Vec<Queues>,
    notes: Vec<String>,
}

struct Rx {
    /// `None` without an input, and when it has come to its end.
    input: Option<Input>,
    /// How the input ended. Told at the next call, when the last packets have been passed on.
    end: Option<Result<(), Error>>,
    buffers: Buffers,
    status: Arc<Status>,
    finished: Arc<AtomicBool>,
    mtu: usize,
    /// When the packets of the last burst were recorded.
    times: Vec<u64>,
}

struct Input {
    reader: Reader,
    /// Passes to come after this one; `None` for ever.
    repeat: Option<u32>,
    speed: ReplaySpeed,
    /// When this pass began, here and in the file.
    began: Option<(Instant, u64)>,
    /// Read, but not due yet.
    early: Option<(u64, Packet)>,
    /// Buffers that the longest frame takes.
    buffers: usize,
    /// Something of this pass was delivered.
    delivered: bool,
}

struct Tx {
    /// `None` without an output, and when writing it has failed.
    writer: Option<Writer>,
    /// What is in the file and in the statistics.
    counted: Count,
    /// When all was last handed to the kernel, in nanoseconds since 1970.
    flushed: u64,
    status: Arc<Status>,
    mtu: usize,
}

impl Tx {
    /// How long a frame may wait for others, in nanoseconds: whoever follows the file sees it then.
    const LATEST: u64 = 1_000_000_000;

    /// Counts what is in the file now. If writing has failed, what was taken and is not there is dropped.
    fn settle(&mut self, result: Result<(), Error>) {
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
    /// Opens the input and checks its format, then makes the output. One queue has both.
    pub fn open(config: &PcapConfig, port: &PortConfig, pool: &Mempool) -> Result<Self, Error> {
        let path = config.input.as_deref().or(config.output.as_deref()).unwrap_or(Path::new(""));
        let name = format!("pcap:{}", path.display());
        if port.queues > 1 {
            return Err(Error::Other(format!("{name}: a capture file has one queue; leave out --queues")));
        }
        let reader = config.input.as_deref().map(Reader::open).transpose()?;
        let canonical = |path: &Option<std::path::PathBuf>| path.as_deref().and_then(|path| path.canonicalize().ok());
        if config.input.is_some() && canonical(&config.output).is_some_and(|out| canonical(&config.input) == Some(out))
        {
            return Err(Error::Other(format!("{name}: input and output are the same file; name another output")));
        }
        let writer = config.output.as_deref().map(Writer::create).transpose()?;

        let notes = match (&config.input, &config.output) {
            (None, Some(_)) => vec!["nothing is received: there is no input".into()],
            (Some(_), None) => vec!["what is sent is dropped; to keep it: pcap:FILE,out=FILE".into()],
            _ => Vec::new(),
        };
        let status = Arc::new(Status::new(1));
        let finished = Arc::new(AtomicBool::new(false));
        let buffers = Buffers::of(pool, LONGEST_HEADER + port.mtu)?;
        let input = reader.map(|reader| Input {
            reader,
            repeat: config.repeat.checked_sub(1),
            speed: config.speed,
            began: None,
            early: None,
            buffers,
            delivered: false,
        });
        let rx = Rx {
            input,
            end: None,
            buffers: Buffers::new(pool),
            status: status.clone(),
            finished: finished.clone(),
            mtu: port.mtu,
            times: Vec::with_capacity(MAX_BATCH),
        };
        let tx = Tx { writer, counted: Count::default(), flushed: now(), status: status.clone(), mtu: port.mtu };
        let tx = Software::new(tx, Flags::default(), pool);
        let queues = vec![Queues { rx: Box::new(rx), tx: Box::new(tx) }];
        Ok(Self { name, status, finished, queues, notes })
    }
}

/// What became of an attempt to read a packet.
enum Next {
    Packet(u64, Packet),
    /// It does not pass the port.
    Dropped,
    /// The file begins again.
    Again,
    /// No buffer is free.
    NoBuffer,
    End,
}

impl Input {
    fn next(&mut self, buffers: &mut Buffers, mtu: usize) -> Result<Next, Error> {
        if buffers.ready(self.buffers).is_none() {
            return Ok(Next::NoBuffer);
        }
        if let Some(record) = self.reader.next()? {
            if !frame_passes(record.bytes, record.bytes.len(), mtu) {
                return Ok(Next::Dropped);
            }
            let Some(packet) = buffers.fill([record.bytes]) else { return Ok(Next::Dropped) };
            self.delivered = true;
            return Ok(Next::Packet(record.nanos, packet));
        }
        // A file without a frame that passes would be read for ever.
        if self.repeat == Some(0) || !self.delivered {
            return Ok(Next::End);
        }
        self.repeat = self.repeat.map(|repeat| repeat - 1);
        (self.began, self.delivered) = (None, false);
        self.reader.rewind()?;
        Ok(Next::Again)
    }

    /// The time in the file that has come, by the clock; the first packet asked about starts it.
    fn due(&mut self, clock: &mut Option<Instant>, nanos: u64) -> bool {
        let ReplaySpeed::Recorded(factor) = self.speed else { return true };
        let now = *clock.get_or_insert_with(Instant::now);
        let (start, first) = *self.began.get_or_insert((now, nanos));
        nanos.saturating_sub(first) as f64 <= now.duration_since(start).as_nanos() as f64 * factor
    }

    /// When the packet is due that has been read already.
    fn next_due(&self) -> Option<Instant> {
        let (ReplaySpeed::Recorded(factor), Some((nanos, _))) = (self.speed, &self.early) else { return None };
        let (start, first) = self.began?;
        // Rounded up, so that it is due then.
        let wait = nanos.saturating_sub(first) as f64 / factor + 1.0;
        start.checked_add(Duration::try_from_secs_f64(wait / 1e9).ok()?)
    }
}

impl Wakeable for Rx {
    fn wakes<'a>(&'a self, each: &mut dyn FnMut(Wake<'a>)) {
        each(match &self.input {
            Some(input) => input.next_due().map_or(Wake::Turns, Wake::At),
            // The end is told by another look.
            None if self.end.is_some() => Wake::Turns,
            None => Wake::Never,
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
        let (mut packets, mut bytes, mut drops) = (0, 0, 0);
        let mut clock = None;
        for _ in 0..burst.room() {
            let (nanos, packet) = match input.early.take() {
                Some(early) => early,
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
                input.early = Some((nanos, packet));
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

    fn recorded(&self) -> &[u64] {
        &self.times
    }
}

impl TxQueue for Tx {
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let (taken, time) = (burst.len(), now());
        let mut put = 0;
        if let Some(writer) = &mut self.writer {
            let mut result = Ok(());
            for packet in burst.iter().filter(|packet| passes(packet, self.mtu)) {
                put += 1;
                result = writer.write_packet(time, Direction::Sent, packet, usize::MAX);
                if result.is_err() {
                    break;
                }
            }
            if result.is_ok() && time.saturating_sub(self.flushed) > Self::LATEST {
                (result, self.flushed) = (writer.flush(), time);
            }
            self.settle(result);
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
        self.settle(result);
    }
}

impl Port for Pcap {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddress {
        MacAddress::default()
    }

    fn link(&mut self) -> Link {
        Link { up: !self.status.is_gone(), mbps: 0 }
    }

    fn stats(&mut self) -> Stats {
        self.status.stats()
    }

    fn state(&mut self) -> State {
        match self.status.state() {
            State::Running if self.finished.load(Ordering::Acquire) => State::Finished,
            state => state,
        }
    }

    fn take_queues(&mut self) -> Vec<Queues> {
        std::mem::take(&mut self.queues)
    }

    fn set_promiscuous(&mut self, _: bool) -> Result<(), Error> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        match self.status.state() {
            State::Gone(why) => Err(Error::Other(why)),
            State::Running | State::Finished => Ok(()),
        }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}
