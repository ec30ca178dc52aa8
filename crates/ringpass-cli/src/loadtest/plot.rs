//! Plots as SVG inside of a page, in the colours of its style sheet.

use std::fmt::Write;

/// A plot of values over categories.
pub struct Plot {
    pub title: &'static str,
    /// What the categories are.
    pub x: &'static str,
    pub categories: Vec<String>,
    /// What the values are.
    pub y: &'static str,
    /// Least top of the scale.
    pub top: f64,
    pub series: Vec<Series>,
    /// Formats a value.
    pub format: fn(f64) -> String,
}

/// Values of one kind.
pub struct Series {
    pub name: String,
    /// Name of its class in the style sheet, which has its colour.
    pub class: String,
    pub points: Vec<Point>,
}

/// One value.
pub struct Point {
    pub category: usize,
    pub value: f64,
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 300.0;
/// Edges of the area in which values are drawn.
const LEFT: f64 = 112.0;
const RIGHT: f64 = WIDTH - 12.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = HEIGHT - 50.0;

impl Plot {
    /// Returns the plot as HTML, with a legend.
    pub fn html(&self) -> String {
        let mut out = format!("<figure>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n");
        let mut add = |text: String| writeln!(out, "{text}").expect("strings do not fail");
        add(format!("<title>{}</title>", escape(self.title)));
        add(format!("<text class=\"name\" x=\"{LEFT}\" y=\"18\">{}</text>", escape(self.title)));
        let values = self.series.iter().flat_map(|series| &series.points).map(|point| point.value);
        let step = step(values.fold(self.top, f64::max));
        let top = step * TICKS;
        let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / top;
        let width = (RIGHT - LEFT) / self.categories.len().max(1) as f64;
        let x = |category: usize| LEFT + width * (category as f64 + 0.5);
        for tick in (0..=TICKS as u32).map(f64::from) {
            let at = y(tick * step);
            add(format!("<path class=\"grid\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>"));
            let label = escape(&(self.format)(tick * step));
            add(format!("<text class=\"end\" x=\"{}\" y=\"{:.1}\">{label}</text>", LEFT - 6.0, at + 5.5));
        }
        for (category, name) in self.categories.iter().enumerate() {
            let [at, below] = [x(category), BOTTOM + 20.0];
            add(format!("<text class=\"middle\" x=\"{at:.1}\" y=\"{below}\">{}</text>", escape(name)));
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        add(format!("<text class=\"middle\" x=\"{middle}\" y=\"{}\">{}</text>", HEIGHT - 8.0, escape(self.x)));
        for Series { name, class, points } in &self.series {
            let at = |point: &Point| format!("{:.1} {:.1}", x(point.category), y(point.value));
            let path = points.iter().map(at).collect::<Vec<_>>().join("L");
            add(format!("<path class=\"line {class}\" d=\"M{path}\"/>"));
            for point in points {
                let words = format!("{name}, {}: {}", self.categories[point.category], (self.format)(point.value));
                let [cx, cy] = [x(point.category), y(point.value)];
                let title = escape(&words);
                add(format!(
                    "<circle class=\"{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\"><title>{title}</title></circle>"
                ));
            }
        }
        out += "</svg>\n<figcaption>";
        out += &escape(self.y);
        for Series { name, class, .. } in &self.series {
            let name = escape(name);
            write!(out, " <span><svg class=\"key\" viewBox=\"0 0 20 10\"><path class=\"line {class}\" d=\"M0 5H20\"/></svg> {name}</span>")
                .expect("strings do not fail");
        }
        out + "</figcaption>\n</figure>\n"
    }
}

/// Steps of a scale.
const TICKS: f64 = 5.0;

/// Returns the smallest round step of which [`TICKS`] reach a value.
fn step(top: f64) -> f64 {
    let least = (top / TICKS).max(f64::MIN_POSITIVE);
    let ten = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|factor| factor * ten)
        .into_iter()
        .find(|step| *step >= least * 0.999)
        .unwrap_or(least)
}

/// Escapes what HTML gives a meaning.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        assert_eq!([100.0, 14_880_952.0, 7.0, 0.3, 1.0].map(step), [20.0, 5e6, 2.0, 0.1, 0.2]);
    }
}
