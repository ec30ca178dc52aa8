//! Rx queue mapping in the switch. A card receives into a guest's buffers: in a further queue for each guest's
//! address, or in all of its queues for one guest.

use std::sync::Arc;

use ringpass::{Config, Error, Port, PortConfig, Rule, Spread};
use ringpass_port::lending::Lending;

use super::plan::{Mapping, PortPlan};

/// Returns the configuration of a port: a card has one further queue for each guest with an address.
pub fn config(plan: &PortPlan, defaults: &Config) -> Result<PortConfig, Error> {
    let config = PortConfig { rejoin: true, ..defaults.port };
    let steered = plan.maps.iter().filter(|map| map.mac.is_some()).count();
    let wrong = |why: &str| Err(Error::Config(format!("{}: {why}", plan.rules.name)));
    match (plan.maps.len(), steered) {
        (0 | 1, 0) => Ok(config),
        (all, steered) if all != steered => {
            wrong("mapped to several guests; give each mapping the guest's MAC address")
        }
        (_, steered) => Ok(PortConfig { queues: config.queues + steered, spread: Spread::Steered, ..config }),
    }
}

/// A card's queue that borrows a guest's buffers.
pub struct MappedQueue<'a> {
    /// Number of the queue.
    pub queue: usize,
    /// Source of the buffers that it borrows.
    pub lending: Arc<Lending>,
    /// Mapping that the queue implements.
    pub mapping: &'a Mapping,
}

/// Returns the queues of each port that borrow buffers; the list is empty for a port without mappings. To be
/// called before guests can connect, because a guest that lends buffers must be told that they are returned in
/// any order. From this call on, cards steer frames to these queues.
pub fn mapped_queues<'a>(
    ports: &mut [Box<dyn Port>],
    plans: &'a [PortPlan],
    workers: usize,
) -> Result<Vec<Vec<MappedQueue<'a>>>, Error> {
    let mut all = Vec::new();
    for (card, plan) in plans.iter().enumerate() {
        let mut queues = Vec::new();
        for (number, mapping) in plan.maps.iter().enumerate() {
            let mut lent = |pair: usize| {
                let guest = &mut ports[mapping.to];
                let lending = guest.lending(pair);
                let none = || Error::Config(format!("{} has no guest that a card could receive for", guest.name()));
                lending.ok_or_else(none)
            };
            match mapping.mac {
                Some(mac) => {
                    let (queue, lending) = (workers + number, lent(0)?);
                    ports[card].steer(&Rule::Address { mac, vlan: None }, queue)?;
                    queues.push(MappedQueue { queue, lending, mapping });
                }
                None => {
                    for queue in 0..workers {
                        queues.push(MappedQueue { queue, lending: lent(queue)?, mapping });
                    }
                }
            }
        }
        all.push(queues);
    }
    Ok(all)
}
