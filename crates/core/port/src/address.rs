//! Port addresses: the names of ports on a command line.
//!
//! An address is `KIND:ARGUMENT[,OPTION=VALUE…]`. Kinds that wrap another port take their options in front:
//! `KIND[,OPTION=VALUE…]:ADDRESS`.

mod vhost;
mod xdp;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{Error, MacAddress};

pub use vhost::{Role, VhostConfig, VirtioUserConfig};
pub use xdp::{XdpConfig, XdpMode, XdpTransfer};

/// A parsed port address.
///
/// ```
/// use ringpass_port::Address;
///
/// let address: Address = "capture,file=a.pcap:model:tap:left".parse()?;
/// assert!(matches!(address, Address::Capture(..)));
/// assert_eq!(address.to_string(), "capture,file=a.pcap:model:tap:left");
/// assert!("tap".parse::<Address>().is_err());
/// # Ok::<(), ringpass_port::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    /// `0000:01:00.0`: a network card by its PCI address, driven by Ringpass.
    Pci(String),
    /// `model[,mac=…][,device=10fb][,features=…][,lie=…]:WIRE`: a software model of an 82599 (or with `device=1041`
    /// or `1000` of a virtio card) in this process, driven by Ringpass. The other end of its wire is another port.
    Model(ModelConfig, Box<Address>),
    /// `vfio-user:PATH`: a device that another process serves, such as `ringpass model`.
    VfioUser(PathBuf),
    /// `vhost:PATH[,client][,mode=…][,user=…][,group=…][,queues=N][,features=…]`: the vhost-user back-end of the
    /// virtio card of a virtual machine or of another process.
    Vhost(VhostConfig),
    /// `virtio-user:PATH[,server][,mode=…][,user=…][,group=…][,queues=N][,features=…][,mac=…]`: the vhost-user
    /// front-end, a virtio card that another process implements.
    VirtioUser(VirtioUserConfig),
    /// `vale0:PORT`, `netmap:X{PIPE`: a port that `ringpass netmapd` serves, by its name, in netmap's notation.
    Netmap(String),
    /// `tap:NAME`: a TAP interface of the kernel, created if it does not exist.
    Tap(String),
    /// `packet:NAME`: a kernel interface, through a packet socket.
    Packet(String),
    /// `xdp:NAME[,zerocopy|copy][,mode=native|generic][,filter=…]`: a kernel interface, through an XDP socket.
    Xdp(XdpConfig),
    /// `pcap:FILE[,loop=N][,speed=S]`: receives from a capture file. `pcap:,out=FILE` writes sent frames to one.
    Pcap(PcapConfig),
    /// `null`: receives nothing and drops everything that is sent.
    Null,
    /// `capture,file=FILE:PORT`: writes the frames of a port, in both directions, to a capture file.
    Capture(PathBuf, Box<Address>),
    /// `faults[,drop=P][,duplicate=P][,reorder=P][,corrupt=P][,seed=N]:PORT`: injects faults into the frames of
    /// a port.
    Faults(FaultsConfig, Box<Address>),
}

/// Options of `model`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// PCI device id.
    pub device: u16,
    /// MAC address; derived from a counter if not given.
    pub mac: Option<MacAddress>,
    /// Virtio features to offer in addition to the default ones or to leave out, in the syntax of the models.
    pub features: Option<String>,
    /// Lies that the card tells its driver, in the syntax of the models.
    pub lie: Option<String>,
}

/// Options of `pcap`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PcapConfig {
    /// File to receive from.
    pub input: Option<PathBuf>,
    /// File to write sent frames to.
    pub output: Option<PathBuf>,
    /// How often the input is played; 0 for endless repetition.
    pub repeat: u32,
    /// Speed at which the input is played.
    pub speed: ReplaySpeed,
}

/// Speed at which a capture is played.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ReplaySpeed {
    /// Plays frames as fast as they are taken.
    #[default]
    Max,
    /// Plays frames at the recorded speed times this factor.
    Recorded(f64),
}

/// Options of `faults`: probabilities from 0 to 1, for each packet and direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultsConfig {
    /// Drop the packet.
    pub drop: f64,
    /// Deliver the packet twice.
    pub duplicate: f64,
    /// Deliver the packet after its successor.
    pub reorder: f64,
    /// Flip one bit of the packet.
    pub corrupt: f64,
    /// Seed of the random numbers. The same seed affects the same packets.
    pub seed: u64,
}

const KINDS: &str = "0000:01:00.0, model:PORT, vfio-user:PATH, vhost:PATH, virtio-user:PATH, vale0:PORT, netmap:X{PIPE, tap:NAME, packet:NAME, xdp:NAME, \
                     pcap:FILE, null, capture,file=FILE:PORT or faults,drop=0.01:PORT";

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if is_pci(text) {
            let full = if text.len() == 7 { format!("0000:{text}") } else { text.to_owned() };
            return Ok(Self::Pci(full.to_ascii_lowercase()));
        }
        let (head, argument) = text.split_once(':').unwrap_or((text, ""));
        if head == "netmap" || head.starts_with("vale") && !argument.is_empty() {
            return Ok(Self::Netmap(text.into()));
        }
        let (kind, options) = head.split_once(',').unwrap_or((head, ""));
        let wrong = |why: String| Error::Address(format!("address '{text}': {why}"));
        let inner = || {
            let missing = || wrong(format!("'{kind}' wraps another port; write {kind}:PORT, such as {kind}:null"));
            if argument.is_empty() { Err(missing()) } else { argument.parse().map(Box::new) }
        };
        let interface = || interface(kind, argument).map_err(wrong);
        match kind {
            "null" if argument.is_empty() && options.is_empty() => Ok(Self::Null),
            "vfio-user" if options.is_empty() && !argument.is_empty() => Ok(Self::VfioUser(argument.into())),
            "vfio-user" if options.is_empty() => Err(wrong("the socket is missing; write vfio-user:PATH".into())),
            "vhost" if options.is_empty() => vhost::vhost(argument).map(Self::Vhost).map_err(wrong),
            "virtio-user" if options.is_empty() => vhost::virtio_user(argument).map(Self::VirtioUser).map_err(wrong),
            "tap" if options.is_empty() => Ok(Self::Tap(interface()?)),
            "packet" if options.is_empty() => Ok(Self::Packet(interface()?)),
            "xdp" if options.is_empty() => xdp::xdp(argument).map(Self::Xdp).map_err(wrong),
            "pcap" if options.is_empty() => pcap(argument).map(Self::Pcap).map_err(wrong),
            "model" => Ok(Self::Model(model(options).map_err(wrong)?, inner()?)),
            "capture" => Ok(Self::Capture(capture(options).map_err(wrong)?, inner()?)),
            "faults" => Ok(Self::Faults(faults(options).map_err(wrong)?, inner()?)),
            "null" | "tap" | "packet" | "xdp" | "pcap" | "vfio-user" | "vhost" | "virtio-user" => {
                Err(wrong(format!("options of '{kind}' go behind its argument")))
            }
            vale if vale.starts_with("vale") => Err(wrong(format!("the port is missing; write {vale}:PORT"))),
            // A name alone is most often that of an interface.
            name if !name.is_empty() && !text.contains([':', ',']) => Err(wrong(format!(
                "no kind of port; for a kernel interface of this name write packet:{name}, else one of {KINDS}"
            ))),
            _ => Err(wrong(format!("no such kind of port '{kind}'; write one of {KINDS}"))),
        }
    }
}

/// Whether the text has the form `[dddd:]bb:dd.f`, in hexadecimal.
fn is_pci(text: &str) -> bool {
    let shape = |pattern: &str| {
        text.len() == pattern.len()
            && text.chars().zip(pattern.chars()).all(|(c, p)| if p == 'x' { c.is_ascii_hexdigit() } else { c == p })
    };
    shape("xxxx:xx:xx.x") || shape("xx:xx.x")
}

/// Splits `key=value` pairs separated by commas.
fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, &str), String>> {
    text.split(',').filter(|option| !option.is_empty()).map(|option| {
        option.split_once('=').ok_or_else(|| format!("option '{option}' has no value; write {option}=VALUE"))
    })
}

/// Checks the name of an interface.
fn interface(kind: &str, name: &str) -> Result<String, String> {
    match name {
        "" => Err(format!("the interface is missing; write {kind}:NAME")),
        // The kernel would turn a name with '%' into another one (a number for %d), and refuses the other names.
        name if name.len() > 15
            || matches!(name, "." | "..")
            || name.contains(|c: char| "/,%:".contains(c) || c.is_whitespace() || c.is_control()) =>
        {
            Err(format!(
                "'{name}' is not an interface name; those have 1 to 15 characters, no '/', ',', '%', ':' or space"
            ))
        }
        name => Ok(name.to_owned()),
    }
}

fn number<T: FromStr>(key: &str, value: &str, example: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("'{value}' is not a value for {key}; write a number, such as {key}={example}"))
}

fn model(options: &str) -> Result<ModelConfig, String> {
    let mut config = ModelConfig { device: 0x10fb, mac: None, features: None, lie: None };
    for pair in pairs(options) {
        match pair? {
            ("mac", value) => config.mac = Some(value.replace('-', ":").parse()?),
            ("lie", value) => config.lie = Some(value.into()),
            ("features", value) => config.features = Some(value.into()),
            ("device", value) => {
                config.device = u16::from_str_radix(value.trim_start_matches("0x"), 16).map_err(|_| {
                    format!("'{value}' is not a device id; write four hexadecimal digits, such as device=10fb")
                })?;
            }
            (key, _) => return Err(format!("'model' has no option '{key}'; it has mac, device, features and lie")),
        }
    }
    Ok(config)
}

fn pcap(argument: &str) -> Result<PcapConfig, String> {
    let (input, options) = argument.split_once(',').unwrap_or((argument, ""));
    let mut config = PcapConfig { repeat: 1, ..Default::default() };
    config.input = (!input.is_empty()).then(|| input.into());
    for pair in pairs(options) {
        match pair? {
            ("out", value) => config.output = Some(value.into()),
            ("loop", value) => config.repeat = number("loop", value, "10")?,
            ("speed", "max") => config.speed = ReplaySpeed::Max,
            ("speed", "recorded") => config.speed = ReplaySpeed::Recorded(1.0),
            ("speed", value) => match number("speed", value, "2.5, or recorded, or max")? {
                factor if factor > 0.0 && f64::is_finite(factor) => config.speed = ReplaySpeed::Recorded(factor),
                _ => return Err("speed must be above 0; it is a factor of the recorded speed".into()),
            },
            (key, _) => return Err(format!("'pcap' has no option '{key}'; it has out, loop and speed")),
        }
    }
    match config {
        PcapConfig { input: None, output: None, .. } => {
            Err("a file is missing; write pcap:FILE or pcap:,out=FILE".into())
        }
        config => Ok(config),
    }
}

fn capture(options: &str) -> Result<PathBuf, String> {
    let mut file = None;
    for pair in pairs(options) {
        match pair? {
            ("file", value) => file = Some(value.into()),
            (key, _) => return Err(format!("'capture' has no option '{key}'; it has file")),
        }
    }
    file.ok_or_else(|| "the file is missing; write capture,file=FILE:PORT".into())
}

fn faults(options: &str) -> Result<FaultsConfig, String> {
    let mut config = FaultsConfig::default();
    for pair in pairs(options) {
        let (key, value) = pair?;
        let field = match key {
            "drop" => &mut config.drop,
            "duplicate" => &mut config.duplicate,
            "reorder" => &mut config.reorder,
            "corrupt" => &mut config.corrupt,
            "seed" => {
                config.seed = number(key, value, "7")?;
                continue;
            }
            _ => {
                return Err(format!(
                    "'faults' has no option '{key}'; it has drop, duplicate, reorder, corrupt and seed"
                ));
            }
        };
        *field = number(key, value, "0.01")?;
        if !(0.0..=1.0).contains(field) {
            return Err(format!("{key}={value} is not a probability; write a number from 0 to 1"));
        }
    }
    Ok(config)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pci(address) => write!(f, "{address}"),
            Self::Model(_, wire) => write!(f, "model:{wire}"),
            Self::VfioUser(path) => write!(f, "vfio-user:{}", path.display()),
            Self::Vhost(config) => write!(f, "vhost:{}", config.path.display()),
            Self::VirtioUser(config) => write!(f, "virtio-user:{}", config.path.display()),
            Self::Netmap(name) => f.write_str(name),
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Packet(name) => write!(f, "packet:{name}"),
            Self::Xdp(config) => write!(f, "xdp:{}", config.interface),
            Self::Pcap(PcapConfig { input: Some(path), .. }) => write!(f, "pcap:{}", path.display()),
            Self::Pcap(PcapConfig { output: Some(path), .. }) => write!(f, "pcap:,out={}", path.display()),
            Self::Pcap(_) => write!(f, "pcap:"),
            Self::Null => write!(f, "null"),
            Self::Capture(file, inner) => write!(f, "capture,file={}:{inner}", file.display()),
            Self::Faults(_, inner) => write!(f, "faults:{inner}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrameFilter;

    fn parse(text: &str) -> Address {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn addresses_name_ports() {
        assert_eq!(parse("0000:01:00.0"), Address::Pci("0000:01:00.0".into()));
        assert_eq!(parse("AF:00.1"), Address::Pci("0000:af:00.1".into()));
        assert_eq!(parse("null"), Address::Null);
        assert_eq!(parse("tap:rp0"), Address::Tap("rp0".into()));
        let xdp = |mode, filters: &[FrameFilter]| {
            Address::Xdp(XdpConfig { interface: "eth0".into(), mode, filters: filters.into(), ..XdpConfig::default() })
        };
        assert_eq!(parse("xdp:eth0,mode=generic"), xdp(Some(XdpMode::Generic), &[]));
        let Address::Xdp(config) = parse("xdp:eth0,copy,zerocopy,busy-poll") else { panic!() };
        assert_eq!((config.transfer, config.busy_poll), (Some(XdpTransfer::ZeroCopy), true));
        assert_eq!((parse("xdp:eth0"), parse("xdp:eth0").to_string()), (xdp(None, &[]), "xdp:eth0".into()));
        let filters = [
            FrameFilter::Udp(4789),
            FrameFilter::Vlan(10),
            FrameFilter::DstMac(MacAddress([2, 0, 0, 0, 0, 1])),
            FrameFilter::EtherType(0x88b5),
        ];
        let text = "xdp:eth0,filter=udp:4789,filter=vlan:10,filter=dst-mac:02:00:00:00:00:01,filter=ethertype:0x88b5";
        assert_eq!(parse(text), xdp(None, &filters));
        assert_eq!(parse(&format!("{text},filter=all")), xdp(None, &[]));
        for name in ["vale0:a", "vale0:a{1", "netmap:x}1/R"] {
            assert_eq!(parse(name), Address::Netmap(name.into()));
        }
        assert_eq!(parse("vfio-user:/run/a,b:c"), Address::VfioUser("/run/a,b:c".into()));
        assert_eq!(parse("vfio-user:card").to_string(), "vfio-user:card");
        let Address::Model(config, wire) = parse("model,mac=02-00-00-00-00-01,device=1528:tap:x") else { panic!() };
        assert_eq!((config.device, config.mac), (0x1528, Some(MacAddress([2, 0, 0, 0, 0, 1]))));
        assert_eq!(*wire, Address::Tap("x".into()));
        let Address::Faults(config, inner) = parse("faults,drop=0.5,seed=3:capture,file=/tmp/x.pcap:null") else {
            panic!()
        };
        assert_eq!((config.drop, config.seed), (0.5, 3));
        assert_eq!(*inner, Address::Capture("/tmp/x.pcap".into(), Box::new(Address::Null)));
        let Address::Pcap(config) = parse("pcap:a.pcap,loop=0,speed=2,out=b.pcap") else { panic!() };
        assert_eq!((config.repeat, config.speed), (0, ReplaySpeed::Recorded(2.0)));
    }

    #[test]
    fn wrong_addresses_say_what_would_be_right() {
        for (text, hint) in [
            ("", "write one of"),
            ("eth0", "packet:NAME"),
            ("tap:", "tap:NAME"),
            ("tap:a-name-that-is-too-long", "1 to 15"),
            ("tap,queues=2:x", "behind"),
            ("xdp:", "xdp:NAME"),
            ("xdp:a b", "not an interface"),
            ("xdp:eth0,mode=fast", "mode=native"),
            ("xdp:eth0,zerocopy,mode=generic", "mode=native"),
            ("xdp:eth0,socket=/run/x,copy", "give them there"),
            ("xdp:eth0,socket=", "socket=…"),
            ("xdp:eth0,filter=udp", "udp:PORT"),
            ("xdp:eth0,filter=udp:65536", "udp:PORT"),
            ("xdp:eth0,filter=udp:+1", "udp:PORT"),
            ("xdp:eth0,filter=vlan:4095", "1 to 4094"),
            ("xdp:eth0,filter=ethertype:8100", "0xN"),
            ("xdp:eth0,filter=ethertype:0x5ff", "0x0600"),
            ("xdp:eth0,filter=dst-mac:02:00", "02:00:00:00:00:01"),
            (&format!("xdp:eth0{}", ",filter=udp:1".repeat(33)), "at most 32"),
            ("model", "model:PORT"),
            ("model,mac=1:null", "six bytes"),
            ("model,speed=1:null", "mac, device, features and lie"),
            ("pcap:", "pcap:FILE"),
            ("pcap:x,speed=-1", "above 0"),
            ("capture:null", "file=FILE"),
            ("faults,drop=2:null", "from 0 to 1"),
            ("faults,drop:null", "drop=VALUE"),
            ("model:model:nothing", "packet:nothing"),
            ("nothing:x", "no such kind"),
            ("vale0:", "vale0:PORT"),
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains(hint) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
