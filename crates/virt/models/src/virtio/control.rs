//! Commands of the control queue (5.1.6.5).

use ringpass_virtio::features::*;

use super::device::Device;
use super::lies::Lie;
use super::ring::{Chain, Fault, Ring};

const OK: u8 = 0;
const ERR: u8 = 1;
/// Commands carried out in one step.
const MAX_COMMANDS: usize = 16;
/// Longest command in bytes: MAC_TABLE_SET with two lists of addresses.
const MAX_COMMAND_LEN: usize = 64 << 10;

impl Device {
    /// Carries out the commands that the driver has posted.
    pub(super) fn carry_out_all(&mut self, queue: usize) {
        self.with_ring(queue, |device, ring| {
            let (mut chain, mut bytes) = (Chain::default(), Vec::new());
            for _ in 0..MAX_COMMANDS {
                if !device.next(queue, ring, &mut chain)? {
                    break;
                }
                if device.triggers(Lie::ControlNever) {
                    continue;
                }
                device.answer(ring, &mut chain, &mut bytes)?;
            }
            Ok(())
        });
    }

    fn answer(&mut self, ring: &mut dyn Ring, chain: &mut Chain, bytes: &mut Vec<u8>) -> Result<(), Fault> {
        if chain.writable() == 0 || chain.readable() < 2 {
            return Err("a command without its class, its number or a place for the answer");
        }
        if chain.readable() > MAX_COMMAND_LEN {
            return Err("a command that is longer than any");
        }
        chain.read(&self.dma, bytes)?;
        let done = self.carry_out([bytes[0], bytes[1]], &bytes[2..]).is_some() && !self.triggers(Lie::ControlFails);
        self.counters.commands += 1;
        self.counters.commands_failed += u64::from(!done);
        let written = chain.write(&self.dma, &[if done { OK } else { ERR }])?;
        ring.put(chain, written as u32, false);
        Ok(())
    }

    /// Carries out a command; `None` if it is unknown, was not negotiated or has invalid data.
    fn carry_out(&mut self, command: [u8; 2], data: &[u8]) -> Option<()> {
        let needs = match command {
            [0, 0 | 1] => CTRL_RX,
            [0, 2..=5] => CTRL_RX_EXTRA,
            [1, 0] => CTRL_RX,
            [1, 1] => CTRL_MAC_ADDR,
            [2, 0 | 1] => CTRL_VLAN,
            [4, 0] => MQ,
            _ => return None,
        };
        if !self.has(needs) {
            return None;
        }
        let pair = || data.first_chunk::<2>().filter(|_| data.len() == 2).map(|field| u16::from_le_bytes(*field));
        match command {
            [0, mode] => {
                let &[on] = data else { return None };
                let filter = &mut self.filter;
                let modes = [
                    &mut filter.promiscuous,
                    &mut filter.all_multicast,
                    &mut filter.all_unicast,
                    &mut filter.no_multicast,
                    &mut filter.no_unicast,
                    &mut filter.no_broadcast,
                ];
                *modes.into_iter().nth(mode.into())? = on != 0;
            }
            [1, 0] => self.filter.set_lists(data)?,
            [1, _] => {
                self.mac = data.try_into().ok()?;
                self.filter.mac = self.mac;
            }
            [2, add] => {
                let vlan = usize::from(pair()?);
                let word = self.filter.filter_vlans().get_mut(vlan / 64)?;
                *word = if add == 0 { *word | 1 << (vlan % 64) } else { *word & !(1 << (vlan % 64)) };
            }
            _ => self.pairs = pair().filter(|pairs| (1..=self.config.queue_pairs).contains(pairs))?,
        }
        Some(())
    }
}
