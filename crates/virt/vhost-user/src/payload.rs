//! Encoding and decoding of payloads. Pure functions; numbers are in the machine's byte order. The structures
//! are those of "Message Specification".

use crate::message::refuse;
use crate::{Command, InflightArea, MAX_TABLE, Refusal, Region, Reply, Request, VringAddr, VringFd};

impl Request {
    /// Decodes the payload of a request.
    pub fn parse(command: u32, payload: &[u8]) -> Result<Self, Refusal> {
        let Some(known) = Command::of(command) else { return refuse("a command that no specification has") };
        let mut f = Fields(payload);
        let request = match known {
            Command::GetFeatures => Self::GetFeatures,
            Command::SetFeatures => Self::SetFeatures(f.u64()?),
            Command::SetOwner => Self::SetOwner,
            Command::ResetOwner => Self::ResetOwner,
            Command::SetMemTable => Self::SetMemTable(f.table()?),
            Command::SetLogBase => Self::SetLogBase { size: f.u64()?, offset: f.u64()? },
            Command::SetLogFd => Self::SetLogFd,
            Command::SetVringNum => Self::SetVringNum { index: f.u32()?, num: f.u32()? },
            Command::SetVringAddr => {
                let (index, flags) = (f.u32()?, f.u32()?);
                let descriptors = f.u64()?;
                let used = f.u64()?;
                let available = f.u64()?;
                let _log = f.u64()?;
                Self::SetVringAddr(VringAddr { index, flags, descriptors, used, available })
            }
            Command::SetVringBase => Self::SetVringBase { index: f.u32()?, base: f.u32()? },
            Command::GetVringBase => {
                let (index, _num) = (f.u32()?, f.u32()?);
                Self::GetVringBase { index }
            }
            Command::SetVringKick => Self::SetVringKick(f.vring_fd()?),
            Command::SetVringCall => Self::SetVringCall(f.vring_fd()?),
            Command::SetVringErr => Self::SetVringErr(f.vring_fd()?),
            Command::GetProtocolFeatures => Self::GetProtocolFeatures,
            Command::SetProtocolFeatures => Self::SetProtocolFeatures(f.u64()?),
            Command::GetQueueNum => Self::GetQueueNum,
            Command::SetVringEnable => {
                let index = f.u32()?;
                match f.u32()? {
                    on @ 0..=1 => Self::SetVringEnable { index, on: on == 1 },
                    other => return refuse(format!("a ring that is to be {other}; 0 is off, 1 is on")),
                }
            }
            Command::SendRarp => {
                let (mac, _padding): ([u8; 6], u16) = (f.array()?, f.u16()?);
                Self::SendRarp(mac)
            }
            Command::NetSetMtu => Self::NetSetMtu(f.u64()?),
            Command::GetInflightFd => Self::GetInflightFd(f.inflight()?),
            Command::SetInflightFd => Self::SetInflightFd(f.inflight()?),
            Command::ResetDevice => Self::ResetDevice,
            Command::GetMaxMemSlots => Self::GetMaxMemSlots,
            Command::AddMemReg | Command::RemMemReg => {
                let (_padding, region) = (f.u64()?, f.region()?);
                if known == Command::AddMemReg { Self::AddMemReg(region) } else { Self::RemMemReg(region) }
            }
            Command::SetStatus => Self::SetStatus(f.u64()?),
            Command::GetStatus => Self::GetStatus,
            Command::PostcopyAdvise | Command::PostcopyListen | Command::PostcopyEnd => {
                return refuse("postcopy migration is not offered");
            }
            Command::IotlbMsg => return refuse("an IOMMU is not offered"),
            _ => return refuse("not offered"),
        };
        f.end()?;
        Ok(request)
    }

    /// Encodes the payload of the request.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = Payload::default();
        match self {
            Self::GetFeatures | Self::SetOwner | Self::ResetOwner | Self::GetProtocolFeatures => &mut b,
            Self::GetQueueNum | Self::ResetDevice | Self::GetMaxMemSlots | Self::GetStatus | Self::SetLogFd => &mut b,
            Self::SetLogBase { size, offset } => b.u64(*size).u64(*offset),
            Self::SetFeatures(value) | Self::SetProtocolFeatures(value) => b.u64(*value),
            Self::NetSetMtu(value) | Self::SetStatus(value) => b.u64(*value),
            Self::SetMemTable(regions) => {
                b.u32(regions.len() as u32).u32(0);
                regions.iter().fold(&mut b, Payload::region)
            }
            Self::SetVringNum { index, num } | Self::SetVringBase { index, base: num } => b.u32(*index).u32(*num),
            Self::GetVringBase { index } => b.u32(*index).u32(0),
            Self::SetVringEnable { index, on } => b.u32(*index).u32((*on).into()),
            Self::SetVringAddr(VringAddr { index, flags, descriptors, used, available }) => {
                b.u32(*index).u32(*flags).u64(*descriptors).u64(*used).u64(*available).u64(0)
            }
            Self::SetVringKick(ring) | Self::SetVringCall(ring) | Self::SetVringErr(ring) => {
                b.u64(u64::from(ring.index) | u64::from(ring.polled) << 8)
            }
            Self::SendRarp(mac) => b.bytes(mac).bytes(&[0; 2]),
            Self::GetInflightFd(area) | Self::SetInflightFd(area) => b.inflight(area),
            Self::AddMemReg(region) | Self::RemMemReg(region) => b.u64(0).region(region),
        };
        b.0
    }
}

impl Reply {
    /// Decodes the payload of the reply to a command.
    pub fn parse(command: Command, payload: &[u8]) -> Result<Self, Refusal> {
        let mut f = Fields(payload);
        let reply = match command {
            Command::GetVringBase => Self::VringBase { index: f.u32()?, base: f.u32()? },
            Command::GetInflightFd => Self::Inflight(f.inflight()?),
            _ => Self::Number(f.u64()?),
        };
        f.end()?;
        Ok(reply)
    }

    /// Encodes the payload of the reply.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = Payload::default();
        match self {
            Self::Number(value) => b.u64(*value),
            Self::VringBase { index, base } => b.u32(*index).u32(*base),
            Self::Inflight(area) => b.inflight(area),
        };
        b.0
    }
}

/// Undecoded rest of a payload.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let Some((first, rest)) = self.0.split_first_chunk() else {
            return refuse("a message shorter than its command has it");
        };
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Refusal> {
        self.array().map(u64::from_ne_bytes)
    }

    fn region(&mut self) -> Result<Region, Refusal> {
        Ok(Region { guest: self.u64()?, size: self.u64()?, user: self.u64()?, offset: self.u64()? })
    }

    /// Decodes a memory table: a count and that many regions, optionally padded to the largest table.
    fn table(&mut self) -> Result<Vec<Region>, Refusal> {
        let (count, _padding) = (self.u32()? as usize, self.u32()?);
        if count > MAX_TABLE {
            return refuse(format!("{count} memory regions; {MAX_TABLE} are the most that a table has"));
        }
        let regions = (0..count).map(|_| self.region()).collect();
        if self.0.len() == (MAX_TABLE - count) * size_of::<Region>() {
            self.0 = &[];
        }
        regions
    }

    fn vring_fd(&mut self) -> Result<VringFd, Refusal> {
        const POLLED: u64 = 1 << 8;
        let payload = self.u64()?;
        match payload >> 9 {
            0 => Ok(VringFd { index: payload as u8, polled: payload & POLLED != 0 }),
            _ => refuse(format!("a ring of number {payload:#x}")),
        }
    }

    /// Decodes an inflight description. C compilers may add four bytes of padding at the end of the
    /// structure.
    fn inflight(&mut self) -> Result<InflightArea, Refusal> {
        let size = self.u64()?;
        let offset = self.u64()?;
        let queues = self.u16()?;
        let queue_size = self.u16()?;
        if self.0.len() == 4 {
            self.0 = &[];
        }
        Ok(InflightArea { size, offset, queues, queue_size })
    }

    fn end(&self) -> Result<(), Refusal> {
        if self.0.is_empty() { Ok(()) } else { refuse("a message longer than its command has it") }
    }
}

/// A payload under construction.
#[derive(Default)]
struct Payload(Vec<u8>);

impl Payload {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    fn region(&mut self, region: &Region) -> &mut Self {
        self.u64(region.guest).u64(region.size).u64(region.user).u64(region.offset)
    }

    /// Encodes an inflight description in 24 bytes, the size of the C structure.
    fn inflight(&mut self, area: &InflightArea) -> &mut Self {
        self.u64(area.size).u64(area.offset);
        self.bytes(&area.queues.to_ne_bytes()).bytes(&area.queue_size.to_ne_bytes()).u32(0)
    }
}
