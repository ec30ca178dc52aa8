//! The control queue: commands, one at a time (VIRTIO 1.3, 5.1.6.5).

use std::time::{Duration, Instant};

use ringpass_memory::{Mempool, Packet};
use ringpass_port::{Error, MacAddress};
use ringpass_virtio::driver::Virtqueue;

use crate::ring::Ring;

/// How long the device may take for an answer.
const LIMIT: Duration = Duration::from_secs(1);
const OK: u8 = 0;
/// What the place of the answer holds before there is one.
const NONE: u8 = 0xff;

/// What the device is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    /// 5.1.6.5.1: frames for any address.
    Promiscuous(bool),
    /// 5.1.6.5.1: all multicast frames.
    AllMulticast(bool),
    /// 5.1.6.5.2: the device's own address.
    Mac(MacAddress),
    /// 5.1.6.5.5: pairs of queues in use.
    Pairs(u16),
}

impl Command {
    /// Class, command, and what follows.
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Promiscuous(on) => vec![0, 0, on.into()],
            Self::AllMulticast(on) => vec![0, 1, on.into()],
            Self::Mac(mac) => [&[1, 1], &mac.0[..]].concat(),
            Self::Pairs(pairs) => [[4, 0], pairs.to_le_bytes()].concat(),
        }
    }
}

/// The control queue, whichever kind of ring it is.
pub(crate) trait Control: Send {
    /// Has the device carry out a command, and waits for its answer.
    fn command(&mut self, command: Command) -> Result<(), Error>;
}

/// A queue for commands.
pub(crate) struct ControlQueue<Q: Virtqueue + 'static> {
    pub(crate) ring: Ring<Q>,
    pub(crate) pool: Mempool,
}

impl<Q: Virtqueue + 'static> ControlQueue<Q> {
    /// Posts a request with one byte for the answer, and waits for that.
    fn ask(&mut self, request: &[u8]) -> Result<u8, String> {
        let mut packet = self.pool.alloc().ok_or("no buffer is left")?;
        if !packet.copy_from(&[request, &[NONE]].concat()) {
            return Err("the pool's buffers are too small".into());
        }
        // One that was not answered in time stays posted, so the ring may be full.
        self.ring.queue.post_request(packet, 1).map_err(|_| "it does not answer")?;
        self.ring.publish();
        let start = Instant::now();
        loop {
            let late = start.elapsed() >= LIMIT;
            let mut answer = None;
            let taken = self.ring.queue.take(1, |used, _| answer = last_byte(&used.whole()));
            if let Err(broken) = taken {
                self.ring.fail(broken);
                return Err(broken.to_string());
            }
            match answer {
                // An earlier one that came too late is not this one's.
                Some(answer) if self.ring.queue.posted() == 0 => return Ok(answer),
                _ if late => return Err(format!("it does not answer within {} ms", LIMIT.as_millis())),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

fn last_byte(packet: &Packet) -> Option<u8> {
    packet.array(packet.len().checked_sub(1)?).map(u8::from_le_bytes)
}

impl<Q: Virtqueue + 'static> Control for ControlQueue<Q> {
    fn command(&mut self, command: Command) -> Result<(), Error> {
        let why = match self.ask(&command.bytes()) {
            Ok(OK) => return Ok(()),
            Ok(code) => format!("it answers {code}"),
            Err(why) => why,
        };
        Err(Error::Other(format!("the card did not carry out the command {command:?}: {why}")))
    }
}
