//! Results of `bench driver`.

use ringpass::PageSize;
use serde::Serialize;

use super::measure::{Cell, Stage};
use super::pages::pages_name;
use super::rig::Driver;
use super::tsc;
use super::two_workers::TwoWorkers;

/// Results of one stage in one configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(flatten, with = "CellFields")]
    pub cell: Cell,
    #[serde(serialize_with = "stage_name")]
    pub stage: Stage,
    /// Median over the rounds.
    pub cycles_per_packet: f64,
    pub cycles_min: f64,
    pub cycles_p90: f64,
    /// `None` if instructions were not counted.
    pub instructions_per_packet: Option<f64>,
}

#[derive(Serialize)]
#[serde(remote = "Cell")]
struct CellFields {
    #[serde(serialize_with = "driver_name")]
    driver: Driver,
    batch: usize,
    ring: usize,
    #[serde(serialize_with = "serialize_pages")]
    pages: PageSize,
    offloads: bool,
    vector: bool,
}

fn driver_name<S: serde::Serializer>(driver: &Driver, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(driver.name())
}

fn serialize_pages<S: serde::Serializer>(pages: &PageSize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(pages_name(*pages))
}

fn stage_name<S: serde::Serializer>(stage: &Stage, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(stage.name())
}

/// All results of a run.
pub struct Results {
    /// Configuration of the stage table, which the sweeps have in common.
    pub base: Cell,
    pub rows: Vec<Row>,
    /// `None` where it was not measured.
    pub two_workers: Option<TwoWorkers>,
}

impl Results {
    /// Returns the row of a stage, if that configuration was measured.
    pub fn row(&self, cell: Cell, stage: Stage) -> Option<&Row> {
        self.rows.iter().find(|row| row.cell == cell && row.stage == stage)
    }

    /// Returns the totals of the configurations that differ from the base only in batch size.
    pub fn by_batch(&self) -> impl Iterator<Item = &Row> {
        self.totals().filter(|row| Cell { batch: self.base.batch, ..row.cell } == self.base)
    }

    /// Returns the totals of the configurations with these pages that otherwise differ from the base only in
    /// ring size.
    pub fn by_ring(&self, pages: PageSize) -> impl Iterator<Item = &Row> {
        self.totals().filter(move |row| Cell { ring: self.base.ring, ..row.cell } == Cell { pages, ..self.base })
    }

    /// Returns the totals of all configurations.
    pub fn totals(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.stage == Stage::Total)
    }
}

/// Returns the rate, in millions of packets a second, that one core reaches at this cost.
pub fn mpps(cycles_per_packet: f64) -> f64 {
    tsc::frequency() / cycles_per_packet / 1e6
}
