//! Rx queue mapping in the switch: a card has a further queue for each guest's address, or all of its queues for one
//! guest, and receives into that guest's buffers.

use std::sync::Arc;

use ringpass_memory::Lending;
use ringpass_port::{Error, Port, PortConfig, Rule, Spread};

use super::plan::{Mapping, PortPlan};
use crate::options::Options;

/// How a port is opened: a card with a queue more for each guest.
pub fn config(plan: &PortPlan, options: &Options) -> Result<PortConfig, Error> {
    let config = PortConfig { rejoin: true, ..options.port() };
    let steered = plan.maps.iter().filter(|map| map.mac.is_some()).count();
    let wrong = |why: &str| Err(Error::Other(format!("{}: {why}", plan.rules.name)));
    match (plan.maps.len(), steered) {
        (0 | 1, 0) => Ok(config),
        (all, steered) if all != steered => {
            wrong("mapped to several guests; give each mapping the guest's MAC address")
        }
        (_, steered) => Ok(PortConfig { queues: config.queues + steered, spread: Spread::Steered, ..config }),
    }
}

/// What is to become of a queue of a card.
pub struct Borrowed<'a> {
    /// The queue's number.
    pub queue: usize,
    /// What it borrows.
    pub lending: Arc<Lending>,
    /// For whom.
    pub mapping: &'a Mapping,
}

/// What the queues of each port borrow; ports without mappings have none. Guests are asked before they can come, as they
/// must be told that buffers come back in any order. Cards steer frames to their queues from now on.
pub fn borrowed<'a>(
    ports: &mut [Box<dyn Port>],
    plans: &'a [PortPlan],
    workers: usize,
) -> Result<Vec<Vec<Borrowed<'a>>>, Error> {
    let mut all = Vec::new();
    for (card, plan) in plans.iter().enumerate() {
        let mut queues = Vec::new();
        for (number, mapping) in plan.maps.iter().enumerate() {
            let lent = |pair: usize| {
                let guest = &ports[mapping.to];
                let none = || Error::Other(format!("{} has no guest that a card could receive for", guest.name()));
                guest.lending(pair).ok_or_else(none)
            };
            match mapping.mac {
                Some(mac) => {
                    let (queue, lending) = (workers + number, lent(0)?);
                    ports[card].steer(&Rule::Address { mac, vlan: None }, queue)?;
                    queues.push(Borrowed { queue, lending, mapping });
                }
                None => {
                    for queue in 0..workers {
                        queues.push(Borrowed { queue, lending: lent(queue)?, mapping });
                    }
                }
            }
        }
        all.push(queues);
    }
    Ok(all)
}
