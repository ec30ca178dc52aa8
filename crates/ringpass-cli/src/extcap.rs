//! The subcommand `ringpass extcap`, which Wireshark and tshark run: it shows them the ports of a service as interfaces, and captures from one
//! (Wireshark, "Adding Capture Interfaces And Log Sources Using Extcap").

use std::path::PathBuf;

use ringpass::Error;
use ringpass::control::{Client, DEFAULT_SOCKET};
use ringpass_port::FrameFilter;

use crate::ctl::capture;
use crate::output::print_line;

/// Show the ports of a service to Wireshark and tshark, as interfaces, and capture from them
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// List the interfaces
    #[arg(long)]
    extcap_interfaces: bool,
    /// Version of who asks
    #[arg(long, value_name = "VERSION", num_args = 0..=1)]
    extcap_version: Option<Option<String>>,
    /// The interface: 'ringpass:' and the name of a port
    #[arg(long, value_name = "INTERFACE")]
    extcap_interface: Option<String>,
    /// List its link types
    #[arg(long)]
    extcap_dlts: bool,
    /// List the options of a capture
    #[arg(long)]
    extcap_config: bool,
    /// Frames that are captured: udp:PORT, vlan:ID, dst-mac:MAC, ethertype:0xN, several with spaces between them for any of them
    #[arg(long, value_name = "FILTERS", alias = "filter")]
    extcap_capture_filter: Option<String>,
    /// Capture
    #[arg(long, requires_all = ["extcap_interface", "fifo"])]
    capture: bool,
    /// Where the capture is written to
    #[arg(long, value_name = "PATH")]
    fifo: Option<PathBuf>,
    /// Control socket of the service
    #[arg(long, value_name = "PATH", env = "RINGPASS_CONTROL", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

const EXAMPLES: &str = "EXAMPLES:
  what Wireshark sees, once /usr/lib/*/wireshark/extcap/ringpass starts this program:
      tshark -D
      tshark -i ringpass:tap:a
      tshark -i ringpass:tap:a -f udp:53
  what it asks for:
      ringpass extcap --extcap-interfaces";

/// In front of a port's name in that of its interface.
const PREFIX: &str = "ringpass:";

/// Runs the subcommand.
pub fn run(args: Args) -> Result<(), Error> {
    let filters: Vec<_> =
        args.extcap_capture_filter.iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect();
    if args.extcap_interfaces {
        interfaces(&args);
        return Ok(());
    }
    let interface = args.extcap_interface.unwrap_or_default();
    let unknown = || Error::NotFound(format!("'{interface}' is no interface; they are called {PREFIX}PORT"));
    let port = interface.strip_prefix(PREFIX).ok_or_else(unknown)?.to_owned();
    if args.extcap_dlts {
        print_line("dlt {number=1}{name=EN10MB}{display=Ethernet}");
    } else if args.extcap_config {
        print_line(&format!(
            "arg {{number=0}}{{call=--socket}}{{display=Control socket}}{{type=string}}{{default={}}}",
            args.socket.display()
        ));
        print_line(
            "arg {number=1}{call=--filter}{display=Frames}{tooltip=udp:PORT, vlan:ID, dst-mac:MAC, ethertype:0xN}{type=string}",
        );
    } else if let (true, Some(fifo)) = (args.capture, args.fifo) {
        capture::run(&mut Client::connect(&args.socket)?, capture::Args::new(port, fifo, filters), false)?;
    } else if let Some(why) = filters.iter().find_map(|filter| filter.parse::<FrameFilter>().err()) {
        // Wireshark asks while it is typed; nothing means that it is right.
        print_line(&why);
    }
    Ok(())
}

/// Lists the ports of the service, if one runs; who asks has other interfaces too.
fn interfaces(args: &Args) {
    let version = env!("CARGO_PKG_VERSION");
    print_line(&format!(
        "extcap {{version={version}}}{{help=https://github.com/ringpass/ringpass}}{{display=Ringpass}}"
    ));
    let Ok(status) = Client::connect(&args.socket).and_then(|mut client| client.status()) else { return };
    // A name that would end the word early cannot be told.
    for port in status.ports.iter().filter(|port| !port.name.contains(['{', '}'])) {
        let switch = port.switch.as_deref().map(|switch| format!(" of switch {switch}")).unwrap_or_default();
        print_line(&format!("interface {{value={PREFIX}{0}}}{{display=Ringpass port {0}{switch}}}", port.name));
    }
}
