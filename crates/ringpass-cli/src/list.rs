//! The subcommand `ringpass list`: shows the machine's network cards and interfaces.

use ringpass::{Error, drivers};
use ringpass::{KernelInterface, kernel_interface};
use serde_json::{Value, json};

use crate::stats::print_line;
use ringpass::cards::{self, NetworkCard, offer};

/// Show the network cards, which of them Ringpass can drive, and what XDP sockets can do on the kernel's interfaces
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print a JSON object for each card, and for each interface that is on none
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  ringpass list
  ringpass list --json | jq -r 'select(.usable) | .address'";

/// Returns the name of a card that can be driven, or the reason why it cannot.
fn verdict(card: &NetworkCard) -> Result<&'static str, String> {
    let Some(model) = drivers::supports(card.id) else {
        return Err("no driver for it".into());
    };
    match cards::in_use(&card.address) {
        Some(why) => Err(format!("{why}; to take it all the same: --take-over {}", card.address)),
        None => cards::missing_permission(&card.address).map_or(Ok(model), Err),
    }
}

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let cards = cards::all();
    if cards.is_empty() && !args.json {
        print_line("no network card on PCI; 'ringpass demo' needs none");
    }
    for card in &cards {
        let (verdict, what) = (verdict(card), cards::describe(&card.address, card.id));
        if args.json {
            print_json(card, &what, &verdict);
            continue;
        }
        print_line(&format!("{}  {what}", card.address));
        print_line(&format!("    kernel driver  {}", card.driver.as_deref().unwrap_or("none")));
        for name in &card.interfaces {
            print_line(format!("    interface      {name}, {}", state(name)).trim_end());
            print_line(&format!("    XDP            {}", xdp(name)));
        }
        if let Some(node) = card.numa_node {
            print_line(&format!("    NUMA node      {node}"));
        }
        print_line(&format!("    bus            {}", cards::bus(&card.address)));
        if let Some(offer) = offer::read_offer(&card.address) {
            print_line(&format!("    virtio         {}", offer.summary()));
            for suggestion in offer.suggestions(cards::cpus()) {
                print_line(&format!("    host could     {}: {}", suggestion.what, suggestion.qemu));
                print_line(&format!("                   libvirt: {}", suggestion.libvirt));
            }
        }
        print_line(&match verdict {
            Ok(model) => format!("    usable         yes, as {model}: ringpass fwd {} …", card.address),
            Err(why) => format!("    usable         no: {why}"),
        });
    }
    for name in cards::other_interfaces(&cards) {
        if args.json {
            let mut object = interface(&name);
            object["event"] = "interface".into();
            print_line(&object.to_string());
            continue;
        }
        let driver = kernel_interface(&name).and_then(|interface| interface.driver);
        print_line(&name);
        print_line(&format!("    kernel driver  {}", driver.as_deref().unwrap_or("none")));
        print_line(format!("    interface      {}", state(&name)).trim_end());
        print_line(&format!("    XDP            {}", xdp(&name)));
    }
    Ok(())
}

/// Says whether an interface is up, and its addresses.
fn state(name: &str) -> String {
    format!("{}  {}", if cards::is_up(name) { "up" } else { "down" }, cards::addresses(name).join(", "))
}

/// Says what the port `xdp:NAME` can do on an interface.
fn xdp(name: &str) -> String {
    let Some(KernelInterface { queues, xdp, .. }) = kernel_interface(name) else {
        return "unknown: the interface has just gone".into();
    };
    let queues = match queues {
        Some(1) => "1 queue".into(),
        Some(queues) => format!("{queues} queues"),
        None => "queues unknown".into(),
    };
    let Some(xdp) = xdp else {
        return format!("{queues}; the kernel does not say what the driver can do (Linux 6.3 does)");
    };
    let can = |can: bool, what| if can { what } else { "" };
    let modes = can(xdp.native(), "native and ").to_owned() + "generic mode";
    let zero_copy = if xdp.zero_copy() { "zero-copy" } else { "copies only" };
    let hints = xdp.hints().join(", ");
    let parts = [&*modes, zero_copy, can(xdp.pieces(), "frames in several buffers"), &hints, &queues];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

fn interface(name: &String) -> Value {
    let KernelInterface { driver, queues, xdp } = kernel_interface(name).unwrap_or_default();
    let xdp = xdp.map(|xdp| {
        json!({
            "native": xdp.native(),
            "zero_copy": xdp.zero_copy(),
            "several_buffers": xdp.pieces(),
            "hints": xdp.hints(),
        })
    });
    json!({
        "name": name,
        "up": cards::is_up(name),
        "addresses": cards::addresses(name),
        "kernel_driver": driver,
        "queues": queues,
        "xdp": xdp,
    })
}

fn print_json(card: &NetworkCard, what: &str, verdict: &Result<&str, String>) {
    let offer = offer::read_offer(&card.address);
    let object = json!({
        "event": "card",
        "address": card.address,
        "id": format!("{:04x}:{:04x}", card.id.vendor, card.id.device),
        "description": what,
        "kernel_driver": card.driver,
        "bus": cards::bus(&card.address),
        "interfaces": card.interfaces.iter().map(interface).collect::<Vec<_>>(),
        "numa_node": card.numa_node,
        "virtio": offer.map(|offer| json!({
            "features": format!("{:#x}", offer.features),
            "queue_pairs": offer.pairs,
            "rx_ring": offer.rx_ring,
            "host_could": offer.suggestions(cards::cpus()),
        })),
        "usable": verdict.is_ok(),
        "why_not": verdict.as_ref().err(),
    });
    print_line(&object.to_string());
}
