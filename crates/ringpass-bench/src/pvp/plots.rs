//! The paper's figures 9 to 12 as SVG.

use std::path::Path;

use plotters::style::RGBColor;
use ringpass::Error;

use super::report::{Row, rows, usual_distance};
use super::{Experiment, Series as Measured, paper};
use crate::heatmap::{self, HeatMap};
use crate::plot::{self, BLUE, GREEN, GREY, ORANGE, Panel, Scale, Series, SeriesStyle, top};
use crate::vhost::Ring;

/// Draws the results.
pub fn draw(series: &[Measured], directory: &Path) -> Result<(), Error> {
    let rows = rows(series, usual_distance(series), "");
    let of = |experiment| rows.iter().filter(move |row: &&Row| row.experiment == experiment).collect::<Vec<_>>();
    let patterns = of(Experiment::Patterns);
    let sizes = of(Experiment::Sizes);
    let rings = of(Experiment::Rings);
    if !patterns.is_empty() {
        let gains = paper::GAINS.map(|(size, gain)| format!("{gain} % at {size} bytes"));
        let words = format!("Paper: (e), mapped queues, gains {} over (a).", gains.join(", "));
        plot::draw(&directory.join("figure-11-patterns.svg"), &pattern_panels(&patterns), &words)?;
    }
    if !sizes.is_empty() {
        plot::draw(&directory.join("figure-12-sizes.svg"), &size_panels(&sizes), "")?;
    }
    let mut frames: Vec<usize> = rings.iter().map(|row| row.size).collect();
    frames.dedup();
    for size in frames {
        let figure = if size == 64 { 9 } else { 10 };
        let path = directory.join(format!("figure-{figure}-rings-{size}.svg"));
        let rows: Vec<_> = rings.iter().copied().filter(|row| row.size == size).collect();
        heatmap::draw(&path, &maps(&rows), 2, "virtual Rx ring", "physical Rx ring")?;
    }
    Ok(())
}

/// Creates a panel for each frame size, with bars for each kind of ring.
fn pattern_panels(rows: &[&Row]) -> Vec<Panel> {
    let mut sizes: Vec<usize> = rows.iter().map(|row| row.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let panel = |size| {
        let rows: Vec<_> = rows.iter().filter(|row| row.size == size).collect();
        let mut names: Vec<char> = rows.iter().map(|row| row.pattern.name).collect();
        names.sort_unstable();
        names.dedup();
        let series: Vec<Series> = [(Ring::Split, BLUE, -0.2), (Ring::Packed, ORANGE, 0.2)]
            .into_iter()
            .map(|(ring, color, right)| {
                let of_ring = rows.iter().filter(|row| row.ring == ring);
                let category = |row: &Row| names.iter().position(|&name| name == row.pattern.name).unwrap_or(0);
                let points = of_ring.map(|row| (category(row), row.mpps)).collect();
                Series { name: ring.name().into(), color, look: SeriesStyle::Bars(right), points }
            })
            .filter(|series| !series.points.is_empty())
            .collect();
        Panel {
            title: format!("Copy patterns: {size} bytes"),
            x: "pattern of Table III".into(),
            y: "Mpps, switch on one core".into(),
            categories: names.iter().map(|name| format!("({name})")).collect(),
            scale: Scale::Linear,
            range: 0.0..top(&series) * 1.3,
            series,
        }
    };
    sizes.into_iter().map(panel).collect()
}

/// Creates panels of Mpps over frame sizes: with the switch on one core, and as limited by the slowest thread
/// alone, with the paper's values.
fn size_panels(rows: &[&Row]) -> [Panel; 2] {
    let mut sizes: Vec<usize> = rows.iter().map(|row| row.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut kinds: Vec<_> = rows.iter().map(|row| (row.pattern, row.ring)).collect();
    kinds.sort_by_key(|(pattern, ring)| (pattern.name, *ring));
    kinds.dedup();
    let colors: [RGBColor; 4] = [BLUE, ORANGE, GREEN, RGBColor(0x8a, 0x3f, 0xa0)];
    let ours = |value: fn(&Row) -> f64| {
        let series = kinds.iter().zip(colors).map(|(&(pattern, ring), color)| {
            let of_kind = rows.iter().filter(|row| (row.pattern, row.ring) == (pattern, ring));
            let category = |row: &Row| sizes.iter().position(|&size| size == row.size).unwrap_or(0);
            let points = of_kind.map(|row| (category(row), value(row))).collect();
            let how = if pattern.mapped() { "mapped" } else { "copying" };
            Series { name: format!("{}, {how}", ring.name()), color, look: SeriesStyle::Line, points }
        });
        series.collect::<Vec<_>>()
    };
    // A frame also takes the time of its CRC, preamble and gap.
    let wire = |gigabits: f64| {
        let points = sizes.iter().map(|&size| gigabits * 1000.0 / 8.0 / (size + 24) as f64).enumerate().collect();
        Series { name: format!("{gigabits} Gbit/s"), color: GREY, look: SeriesStyle::Level, points }
    };
    let panel = |title: &str, mut series: Vec<Series>| {
        let highest = top(&series);
        series.extend([10.0, 40.0].map(wire).map(|mut line| {
            line.points.retain(|&(_, value)| value <= highest * 1.1);
            line
        }));
        Panel {
            title: title.into(),
            x: "bytes in a frame".into(),
            y: "Mpps".into(),
            categories: sizes.iter().map(usize::to_string).collect(),
            scale: Scale::Linear,
            range: 0.0..highest * 1.35,
            series,
        }
    };
    let mut own = ours(|row| row.own_cores_mpps);
    if let Some(shortest) = sizes.iter().position(|&size| size == 64) {
        let values = [paper::PACKED_COPIED, paper::PACKED_MAPPED];
        let points = values.map(|value| (shortest, value)).to_vec();
        own.push(Series {
            name: "paper, packed: copying, mapped".into(),
            color: GREY,
            look: SeriesStyle::Crosses,
            points,
        });
    }
    [panel("Frame sizes: switch on one core", ours(|row| row.mpps)), panel("Frame sizes: a core for each thread", own)]
}

/// Creates a map for each virtual Tx ring and pattern, with the paper's range.
fn maps(rows: &[&Row]) -> Vec<HeatMap> {
    let mut kinds: Vec<_> = rows.iter().map(|row| (row.virtual_tx, row.pattern)).collect();
    kinds.sort_by_key(|(tx, pattern)| (*tx, pattern.name));
    kinds.dedup();
    let axis = |of: fn(&Row) -> usize| {
        let mut values: Vec<usize> = rows.iter().map(|row| of(row)).collect();
        values.sort_unstable();
        values.dedup();
        values
    };
    let (physical, virtual_rx) = (axis(|row| row.physical_rx), axis(|row| row.virtual_rx));
    let map = |(virtual_tx, pattern): (usize, super::Pattern)| {
        let value = |physical_rx, virtual_rx| {
            let rings = (physical_rx, virtual_rx, virtual_tx);
            let is = |row: &&&Row| (row.physical_rx, row.virtual_rx, row.virtual_tx) == rings && row.pattern == pattern;
            rows.iter().find(is).map(|row| row.mpps)
        };
        let size = rows[0].size;
        let said = paper::MAPS.iter().find(|map| (map.size, map.virtual_tx) == (size, virtual_tx));
        let range = said.and_then(|map| if pattern.mapped() { map.mapped } else { map.copied });
        let how = if pattern.mapped() { "mapped" } else { "copying" };
        HeatMap {
            title: format!("{size} bytes, {how}, virtual Tx ring of {virtual_tx}: Mpps"),
            words: range
                .map_or(String::new(), |(from, to)| format!("Paper: {from} to {to} Mpps, a core for each thread.")),
            columns: virtual_rx.iter().map(usize::to_string).collect(),
            rows: physical.iter().map(usize::to_string).collect(),
            values: physical.iter().map(|&row| virtual_rx.iter().map(|&column| value(row, column)).collect()).collect(),
        }
    };
    kinds.into_iter().map(map).collect()
}
