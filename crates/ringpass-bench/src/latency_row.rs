//! Results of `bench latency`.

use serde::Serialize;

use super::paper::Load;

/// Results for one ring size and load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub ring: usize,
    #[serde(serialize_with = "load_name")]
    pub load: Load,
    pub offered_mpps: f64,
    pub forwarded_mpps: f64,
    /// Share of the offered frames that were lost, 0 to 1.
    pub loss: f64,
    pub median_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
}

fn load_name<S: serde::Serializer>(load: &Load, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(load.name())
}

impl Row {
    /// Returns median, 99th and 99.9th percentile in microseconds.
    pub fn percentiles(&self) -> [f64; 3] {
        [self.median_us, self.p99_us, self.p999_us]
    }
}
