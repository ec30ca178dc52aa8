//! The report: one page with the tables and plots, which needs nothing else.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ringpass::Error;

use super::plot::{Plot, Point, Series, escape};
use super::results::{Loss, SizeResult, Throughput, percent, tables};
use crate::stats::pps;

/// Style sheet of the page, for light and dark.
const STYLE: &str = include_str!("report.css");
/// Colours of the style sheet.
const COLORS: usize = 7;

/// A file for the report, created before the sandbox forbids it.
pub struct Report {
    path: PathBuf,
    file: File,
}

impl Report {
    /// Creates the file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|source| Error::file(format!("--report {}", path.display()), source))?;
        Ok(Self { path: path.into(), file })
    }

    /// Writes the page; `facts` say what was measured, and how.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(mut self, results: &[SizeResult], facts: &[String]) -> Result<(), Error> {
        let written = self.file.write_all(page(results, facts).as_bytes());
        written.map_err(|source| Error::file(format!("--report {}", self.path.display()), source))
    }
}

fn page(results: &[SizeResult], facts: &[String]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
        content=\"width=device-width\">\n<title>Load test</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Load test</h1>\n"
    );
    facts.iter().for_each(|fact| page += &format!("<p>{}</p>\n", escape(fact)));
    page += "<div class=\"plots\">\n";
    let plots = [throughput(results), loss(results)];
    plots.iter().filter(|plot| !plot.series.is_empty()).for_each(|plot| page += &plot.html());
    page += "</div>\n";
    for table in tables(results) {
        page += &format!("<h2>{}</h2>\n<div class=\"table\"><table>\n", escape(table.title));
        for (number, row) in table.rows.iter().enumerate() {
            let cell = if number == 0 { "th" } else { "td" };
            let cells: String = row.iter().map(|text| format!("<{cell}>{}</{cell}>", escape(text))).collect();
            page += &format!("<tr>{cells}</tr>\n");
        }
        page += "</table></div>\n";
    }
    page + "</body>\n</html>\n"
}

/// Returns the throughput by size, with the rate of the link, or that at most was sent.
fn throughput(results: &[SizeResult]) -> Plot {
    let measured: Vec<&SizeResult> = results.iter().filter(|result| result.throughput.is_some()).collect();
    let series = |name: &str, class: &str, value: fn(&SizeResult) -> Option<f64>| {
        let points = measured.iter().enumerate();
        let points = points.filter_map(|(category, result)| Some(Point { category, value: value(result)? })).collect();
        Series { name: name.into(), class: class.into(), points }
    };
    let all = [
        series("rate of the link", "reference", |result| result.line_rate),
        series("sent at the maximum rate", "reference c1", |result| Some(result.max_rate)),
        series("throughput", "c0", |result| {
            result.throughput.as_ref().map(|Throughput { frames_per_second, .. }| *frames_per_second)
        }),
    ];
    Plot {
        title: "Throughput by frame size",
        x: "bytes of a frame without its checksum",
        categories: measured.iter().map(|result| result.name()).collect(),
        y: "Frames a second:",
        top: 0.0,
        series: all.into_iter().filter(|series| !series.points.is_empty()).collect(),
        format: pps,
    }
}

/// Returns the loss by load, a line for each size.
fn loss(results: &[SizeResult]) -> Plot {
    let measured = results.iter().filter(|result| !result.loss.is_empty());
    let series = measured.enumerate().map(|(number, result)| {
        let points = result.loss.iter().rev();
        // Ten loads, of which the lowest are left out once nothing is lost.
        let point = |loss: &Loss| Point { category: loss.load_percent as usize / 10 - 1, value: loss.loss_percent };
        let class = format!("c{}", number % COLORS);
        Series { name: format!("{} bytes", result.name()), class, points: points.map(point).collect() }
    });
    Plot {
        title: "Frame loss by load",
        x: "load in percent of the maximum rate",
        categories: (1..=10).map(|tenth| (10 * tenth).to_string()).collect(),
        y: "Lost frames in percent:",
        top: 1.0,
        series: series.collect(),
        format: percent,
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::Limit;
    use super::super::trial::Latency;
    use super::*;

    fn result(size: f64) -> SizeResult {
        let loss = |load_percent, loss_percent| Loss {
            load_percent,
            offered: 1e4,
            sent: 1000,
            returned: 1000,
            lost: 0,
            loss_percent,
            reordered: 0,
            duplicate: 0,
        };
        let throughput = Throughput {
            frames_per_second: 2e6 / size,
            bits_per_second: 1.6e7,
            line_percent: None,
            limited_by: Limit::Device,
        };
        SizeResult {
            max_rate: 1e5,
            throughput: Some(throughput),
            latency_us: Some(Latency { min: 1.0, avg: 2.0, p50: 2.0, p99: 3.0, p99_9: 4.0, max: 5.0, jitter: 0.5 }),
            loss: vec![loss(100, 60.0), loss(90, 50.0), loss(80, 0.001), loss(70, 0.0)],
            complete: true,
            ..SizeResult::new(size)
        }
    }

    #[test]
    fn the_page_stands_alone_and_shows_all() {
        let page = page(&[result(60.0), result(1514.0)], &["between tap:a and <b>".into()]);
        for outside in ["http", "src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
        for part in [
            "prefers-color-scheme: dark",
            "between tap:a and &lt;b&gt;",
            "<title>throughput, 60: 33.33 kpps</title>",
            "<title>sent at the maximum rate, 1514: 100.00 kpps</title>",
            "<title>60 bytes, 90: 50.00</title>",
            "<td>&lt;0.01</td>",
            "<th>jitter</th>",
        ] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        assert!(!page.contains("rate of the link") && !page.contains("NaN"), "{page}");
        assert_eq!(page.matches("<figure>").count(), 2);
    }

    #[test]
    fn nothing_that_was_not_measured_is_shown() {
        let page = page(&[SizeResult::new(60.0)], &[]);
        assert!(!page.contains("<figure>") && !page.contains("<table>"), "{page}");
    }
}
