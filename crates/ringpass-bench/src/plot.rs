//! Plots as SVG, with the paper's values for comparison.

use std::fmt::Display;
use std::fs;
use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;
use ringpass::{Error, PageSize};
use ringpass_cli::errln;

use super::driver_results::{Results, Row, mpps};
use super::latency_row;
use super::measure::Stage;
use super::pages::pages_name;
use super::paper::{self, Load};

const SIZE: (u32, u32) = (620, 460);
/// Half the width of a bar, in categories.
const BAR: f64 = 0.18;
pub const BLUE: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
pub const ORANGE: RGBColor = RGBColor(0xd9, 0x6c, 0x06);
pub const GREEN: RGBColor = RGBColor(0x2b, 0x83, 0x4a);
pub const GREY: RGBColor = RGBColor(0x70, 0x70, 0x70);

/// Style of a series.
#[derive(Clone, Copy)]
pub enum SeriesStyle {
    /// Points joined by a line.
    Line,
    /// A line without points: a limit or level.
    Level,
    /// Filled triangles.
    Marks,
    /// A bar from zero upwards in each category, shifted right of the category's centre by this distance.
    Bars(f64),
    /// Crosses, which can be told from triangles at the same place.
    Crosses,
}

/// A named series of values.
pub struct Series {
    pub name: String,
    pub color: RGBColor,
    pub look: SeriesStyle,
    /// Category and value.
    pub points: Vec<(usize, f64)>,
}

/// Scale of the value axis.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    Linear,
    Logarithmic,
}

impl Scale {
    fn to(self, value: f64) -> f64 {
        if self == Self::Linear { value } else { value.log2() }
    }

    fn from(self, position: f64) -> f64 {
        if self == Self::Linear { position } else { position.exp2() }
    }
}

/// One coordinate system, over categories.
pub struct Panel {
    pub title: String,
    pub x: String,
    pub y: String,
    pub categories: Vec<String>,
    pub scale: Scale,
    pub range: Range<f64>,
    pub series: Vec<Series>,
}

/// Creates the directory for plots, so that an unusable path fails before anything is measured.
pub fn make_directory(directory: &Path) -> Result<(), Error> {
    let error = |source| Error::os(format!("--svg {} (name a directory)", directory.display()), source);
    fs::create_dir_all(directory).map_err(error)
}

/// Draws figures 4, 5 and 6.
pub fn driver(results: &Results, pages: &[PageSize], directory: &Path) -> Result<(), Error> {
    draw(&directory.join("figure-4-batch.svg"), &batch(results), "")?;
    let words = format!("Paper, section 5.4: {}.", paper::RING_SIZES);
    draw(&directory.join("figure-5-ring.svg"), &[rings("Ring size", results, &[results.base.pages])], &words)?;
    draw(&directory.join("figure-6-pages.svg"), &page_sizes(results, pages), "")
}

/// Creates a line of our totals over categories.
fn line<'a>(name: impl Display, color: RGBColor, rows: impl Iterator<Item = &'a Row>, value: fn(f64) -> f64) -> Series {
    let points = rows.enumerate().map(|(category, row)| (category, value(row.cycles_per_packet))).collect();
    Series { name: name.to_string(), color, look: SeriesStyle::Line, points }
}

/// Returns the highest value.
pub fn top(series: &[Series]) -> f64 {
    series.iter().flat_map(|series| &series.points).fold(f64::MIN_POSITIVE, |top: f64, &(_, value)| top.max(value))
}

/// Creates the level of two ports at 10 Gbit/s with the shortest frames (section 5 of the paper).
fn line_rate(categories: usize) -> Series {
    let points = (0..categories).map(|category| (category, 29.76)).collect();
    Series { name: "line rate, 2 x 10 Gbit/s".into(), color: GREY, look: SeriesStyle::Level, points }
}

fn batch(results: &Results) -> [Panel; 2] {
    let categories: Vec<String> = results.by_batch().map(|row| row.cell.batch.to_string()).collect();
    // Values of others at single batch sizes.
    let marks = |name: &str, color, look, values: &[(usize, f64)]| {
        let category = |batch| results.by_batch().position(|row| row.cell.batch == batch);
        let points = values.iter().filter_map(|&(batch, value)| Some((category(batch)?, value))).collect();
        Series { name: name.into(), color, look, points }
    };
    let [ixy, _, dpdk] = paper::TABLE_1.map(|forwarder| forwarder.cycles(Stage::Total).unwrap_or_default());
    let [peer, vector, _] = &paper::PEERS;
    let cycles = vec![
        line("Ringpass, here", BLUE, results.by_batch(), |cycles| cycles),
        marks("ixy, paper (text)", ORANGE, SeriesStyle::Marks, &[(1, ixy + paper::SAVED_BY_BATCHING), (32, ixy)]),
        marks(
            "DPDK, paper: with vector path, and without",
            GREEN,
            SeriesStyle::Marks,
            &[(32, dpdk), (32, paper::DPDK_SCALAR)],
        ),
        marks(
            "ixy and DPDK, measured in the same way",
            GREY,
            SeriesStyle::Crosses,
            &[peer.cycles.0, peer.cycles.1, vector.cycles.0].map(|cycles| (32, cycles)),
        ),
    ];
    let rates = vec![line("Ringpass, one core", BLUE, results.by_batch(), mpps), line_rate(categories.len())];
    let panel = |title: &str, y: &str, scale, range, series| Panel {
        title: title.into(),
        x: "packets in a batch".into(),
        y: y.into(),
        categories: categories.clone(),
        scale,
        range,
        series,
    };
    let highest = top(&rates) * 1.35;
    [
        panel("Batch size: cost of forwarding", "cycles per packet", Scale::Logarithmic, 8.0..2048.0, cycles),
        panel("Batch size: throughput", "Mpps", Scale::Linear, 0.0..highest, rates),
    ]
}

fn rings(title: &str, results: &Results, pages: &[PageSize]) -> Panel {
    let categories: Vec<String> = results.by_ring(pages[0]).map(|row| row.cell.ring.to_string()).collect();
    let colors = [BLUE, ORANGE];
    let ours = pages.iter().zip(colors).map(|(&pages, color)| {
        line(format!("Ringpass, one core, {} pages", pages_name(pages)), color, results.by_ring(pages), mpps)
    });
    let series: Vec<Series> = ours.chain([line_rate(categories.len())]).collect();
    Panel {
        title: format!("{title}: throughput"),
        x: "descriptors in a ring".into(),
        y: "Mpps".into(),
        categories,
        scale: Scale::Linear,
        range: 0.0..top(&series) * 1.35,
        series,
    }
}

fn page_sizes(results: &Results, pages: &[PageSize]) -> Vec<Panel> {
    let mut panels = vec![rings("Pages", results, pages)];
    let gains: Vec<(usize, f64)> = results
        .by_ring(PageSize::Ordinary)
        .zip(results.by_ring(PageSize::Huge2M))
        .map(|(ordinary, huge)| (ordinary.cycles_per_packet / huge.cycles_per_packet - 1.0) * 100.0)
        .enumerate()
        .collect();
    if !gains.is_empty() {
        let categories = panels[0].categories.clone();
        let is_largest = |category: &usize| categories[*category] == "4096";
        let (from, to) = paper::HUGE_PAGES;
        let others = (0..categories.len()).filter(|category| !is_largest(category));
        let mut points: Vec<_> = others.flat_map(|category| [(category, from), (category, to)]).collect();
        points.extend((0..categories.len()).filter(is_largest).map(|category| (category, paper::HUGE_PAGES_AT_4096)));
        let lowest = gains.iter().fold(0.0, |lowest: f64, &(_, gain)| lowest.min(gain));
        let series = vec![
            Series { name: "Ringpass, here".into(), color: BLUE, look: SeriesStyle::Line, points: gains },
            Series {
                name: "ixy, paper: 1 to 3 %, 5.5 % at 4096".into(),
                color: ORANGE,
                look: SeriesStyle::Marks,
                points,
            },
        ];
        panels.push(Panel {
            title: "Pages: what huge ones gain".into(),
            x: "descriptors in a ring".into(),
            y: "percent".into(),
            categories,
            scale: Scale::Linear,
            range: lowest * 1.2..top(&series) * 1.5,
            series,
        });
    }
    panels
}

/// Draws Table 2.
pub fn latency(rows: &[latency_row::Row], directory: &Path) -> Result<(), Error> {
    let ours: Vec<_> = rows.iter().map(|row| (row.ring, row.load, row.percentiles())).collect();
    let papers: Vec<_> = paper::TABLE_2.iter().map(|row| (row.ring, row.load, row.us)).collect();
    let all = || ours.iter().chain(&papers).flat_map(|(_, _, us)| us).copied();
    // The range extends to powers of two, with room for the legend.
    let range =
        all().fold(f64::MAX, f64::min).log2().floor().exp2()..(all().fold(1.0, f64::max).log2().ceil() + 3.0).exp2();
    let panel = |title: &str, rows: &[(usize, Load, [f64; 3])]| Panel {
        title: title.into(),
        x: "descriptors in a ring, load against saturation".into(),
        y: "microseconds".into(),
        categories: rows.iter().map(|(ring, load, _)| format!("{ring} {}", load.name())).collect(),
        scale: Scale::Logarithmic,
        range: range.clone(),
        series: [("median", BLUE), ("99th percentile", GREEN), ("99.9th percentile", ORANGE)]
            .into_iter()
            .enumerate()
            .map(|(i, (name, color))| {
                let points = rows.iter().enumerate().map(|(category, (_, _, us))| (category, us[i])).collect();
                Series { name: name.into(), color, look: SeriesStyle::Marks, points }
            })
            .collect(),
    };
    let panels =
        [panel("Latency: Ringpass between software cards", &ours), panel("Latency: ixy, paper (Table 2)", &papers)];
    draw(&directory.join("table-2-latency.svg"), &panels, "")
}

/// Draws panels side by side, and a line of text below.
pub fn draw(path: &Path, panels: &[Panel], words: &str) -> Result<(), Error> {
    let below = if words.is_empty() { 0 } else { 30 };
    let size = (SIZE.0 * panels.len() as u32, SIZE.1 + below);
    save(path, size, |root| {
        root.draw_text(words, &("sans-serif", 15).into_text_style(root), (60, SIZE.1 as i32))?;
        let (above, _) = root.split_vertically(SIZE.1);
        let areas = above.split_evenly((1, panels.len()));
        areas.iter().zip(panels).try_for_each(|(area, panel)| draw_panel(area, panel))
    })
}

/// Saves what `draw` draws on a white background.
pub fn save(path: &Path, size: (u32, u32), draw: impl FnOnce(&Area) -> Result<(), DrawError>) -> Result<(), Error> {
    let mut picture = String::new();
    let drawn = (|| {
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        root.fill(&WHITE)?;
        draw(&root)?;
        root.present()
    })();
    drawn.map_err(|error| Error::Fault(format!("the plot {}: {error}", path.display())))?;
    fs::write(path, picture).map_err(|source| Error::os(format!("writing {}", path.display()), source))?;
    errln!("wrote {}", path.display());
    Ok(())
}

/// Area to draw on.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
/// Error of drawing.
pub type DrawError = DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>;

fn draw_panel(area: &Area, panel: &Panel) -> Result<(), DrawError> {
    let to = |value| panel.scale.to(value);
    let last = panel.categories.len() as f64 - 0.5;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(48)
        .y_label_area_size(58)
        .build_cartesian_2d(-0.5..last, to(panel.range.start)..to(panel.range.end))?;
    let category = |x: &f64| {
        let whole = (x - x.round()).abs() < 1e-6 && *x >= -0.01;
        panel.categories.get(x.round().max(0.0) as usize).filter(|_| whole).cloned().unwrap_or_default()
    };
    // Small ranges need two decimal places, as neighbouring labels would be the same with one.
    let digits = if panel.range.end < 1.0 { 100.0 } else { 10.0 };
    let value = |y: &f64| format!("{}", (panel.scale.from(*y) * digits).round() / digits + 0.0);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(0xdd, 0xdd, 0xdd))
        .x_labels(2 * panel.categories.len() + 1)
        .y_labels(9)
        .x_label_formatter(&category)
        .y_label_formatter(&value)
        .x_desc(&panel.x)
        .y_desc(&panel.y)
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .draw()?;
    for Series { name, color, look, points } in &panel.series {
        let points = || points.iter().map(|&(category, value)| (category as f64, to(value)));
        let color = *color;
        let legend = match look {
            SeriesStyle::Marks => {
                let marks = points().map(|at| TriangleMarker::new(at, 7, color.filled()));
                chart.draw_series(marks)?
            }
            SeriesStyle::Line => {
                chart.draw_series(points().map(|at| Circle::new(at, 4, color.filled())))?;
                chart.draw_series(LineSeries::new(points(), color.stroke_width(2)))?
            }
            SeriesStyle::Bars(right) => {
                let bar = |(x, y)| Rectangle::new([(x + right - BAR, 0.0), (x + right + BAR, y)], color.filled());
                chart.draw_series(points().map(bar))?
            }
            SeriesStyle::Crosses => chart.draw_series(points().map(|at| Cross::new(at, 5, color.stroke_width(2))))?,
            SeriesStyle::Level => chart.draw_series(LineSeries::new(points(), color.stroke_width(1)))?,
        };
        let legend = legend.label(name);
        match look {
            SeriesStyle::Crosses => legend.legend(move |(x, y)| Cross::new((x + 9, y), 5, color.stroke_width(2))),
            SeriesStyle::Bars(_) => {
                legend.legend(move |(x, y)| Rectangle::new([(x + 2, y - 5), (x + 16, y + 5)], color.filled()))
            }
            SeriesStyle::Marks => legend.legend(move |(x, y)| TriangleMarker::new((x + 9, y), 7, color.filled())),
            _ => legend.legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))),
        };
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(0xbb, 0xbb, 0xbb))
        .label_font(("sans-serif", 14))
        .draw()
}
