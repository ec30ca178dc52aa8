//! Draft.
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use ringpass_lab::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let opts = &args[1];
    let (a, b) = (Namespace::new(), Namespace::new());
    let taps = [Tap::new(&a, "198.18.0.1/24"), Tap::new(&b, "198.18.0.2/24")];
    let dir = tempfile::tempdir().unwrap();
    let mon = dir.path().join("monitor");
    let mut extra = vec!["-monitor".to_string(), format!("unix:{},server=on,wait=off", mon.display())];
    if args.get(2).is_some_and(|m| m == "icount") { extra.extend(["-icount".into(), "shift=0".into()]); }
    extra.extend(["-D".to_string(), dir.path().join("trace").display().to_string()]);
    let e: Vec<&str> = extra.iter().map(|s| &**s).collect();
    let dev = format!("virtio-net-pci{opts}");
    let g = Guest::new().memory(512).cpus(1).dpdk().arguments(&e).nic(&dev, &taps[0]).nic(&dev, &taps[1]).boot();
    let mut m = UnixStream::connect(&mon).unwrap();
    m.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut hmp = |c: &str| { m.write_all(format!("{c}\n").as_bytes()).unwrap(); let mut s = vec![0; 65536]; let mut t = String::new(); while let Ok(n) = m.read(&mut s) { if n == 0 { break } t += &String::from_utf8_lossy(&s[..n]); } t };
    eprintln!("{}", hmp("info version"));
    let slow = args.get(2).is_some_and(|m| m == "icount");
    a.neighbour(&taps[0].name, "198.18.0.2", &b.mac(&taps[1].name));
    let ringpass = args.get(3).cloned().unwrap_or("/tmp/target-lab/debug/ringpass".into());
    let rate = args.get(4).cloned().unwrap_or("max".into());
    let mut measure = |what: &str, g: &Guest| {
        if slow { eprintln!("{}", hmp("one-insn-per-tb on").lines().last().unwrap_or("")); }
        let gen_ = a.spawn(&[&ringpass, "pktgen", &format!("packet:{}", taps[0].name), "--rate", &rate, "--json", "--src-mac", "02:00:00:00:00:aa"]);
        std::thread::sleep(Duration::from_secs(1));
        let n0 = b.counter(&taps[1].name, "rx_packets");
        let t = Instant::now();
        std::thread::sleep(Duration::from_secs(5));
        let n = b.counter(&taps[1].name, "rx_packets") - n0;
        eprintln!("{what}: {:.0} pps; offered {}", n as f64 / t.elapsed().as_secs_f64(), gen_.summary()["ports"][0]);
        if slow { hmp("one-insn-per-tb off"); }
        let _ = g;
    };
    // bridge
    g.run("modprobe -a virtio_net bridge; ip link add br type bridge; ip link set br up; for i in eth0 eth1; do ip link set $i promisc on; ip link set $i master br up; done; sleep 0.5");
    let s0 = g.run("head -1 /proc/stat");
    measure("bridge", &g);
    eprintln!("{s0}{}", g.run("head -1 /proc/stat; ip -s link show eth0; cat /proc/interrupts | grep virtio"));
    g.run("ip link del br; rmmod virtio_net; modprobe uio_pci_generic; for c in 0000:00:02.0 0000:00:03.0; do [ ! -e /sys/bus/pci/devices/$c/driver ] || echo $c >/sys/bus/pci/devices/$c/driver/unbind; echo uio_pci_generic >/sys/bus/pci/devices/$c/driver_override; echo $c >/sys/bus/pci/drivers_probe; done; echo 64 >/proc/sys/vm/nr_hugepages");
    let job = g.spawn("(until [ -e /run/stop ]; do sleep 0.1; done; echo) | testpmd --lcores '(0,1)@0' -n 1 --in-memory --no-telemetry -m 64 -a 0000:00:02.0 -a 0000:00:03.0 -- --total-num-mbufs=4096 --rxd=256 --txd=256 --burst=32 --forward-mode=io --record-core-cycles --auto-start");
    std::thread::sleep(Duration::from_secs(6));
    eprintln!("{}", g.printed(&job));
    measure("testpmd", &g);
    g.run("touch /run/stop");
    let o = g.wait(&job, Duration::from_secs(60));
    eprintln!("{}", o.text);
}
