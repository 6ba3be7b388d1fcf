//! What all figures have in common: a light card, a title, fonts, and the colours of contestants.

use std::{error::Error, path::Path};

use delaywheel_compare::side_by_side::results::Results;
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// Where a figure is drawn.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Whether drawing went well.
pub(crate) type Drawn = Result<(), Box<dyn Error>>;

/// Width of every figure.
pub(crate) const WIDTH: i32 = 960;

/// Height of the title and what is told below it.
pub(crate) const HEAD: i32 = 64;

/// Text and axes.
pub(crate) const INK: RGBColor = RGBColor(0x24, 0x29, 0x2f);

/// What is to be read second.
pub(crate) const FAINT: RGBColor = RGBColor(0x6a, 0x73, 0x7d);

/// Lines to measure by.
pub(crate) const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xe9);

const PAPER: RGBColor = RGBColor(0xfd, 0xfd, 0xfc);

const FRAME: RGBColor = RGBColor(0xd0, 0xd4, 0xd8);

/// Ours, in order.
const OURS: [RGBColor; 3] =
    [RGBColor(0xd9, 0x1e, 0x36), RGBColor(0xf0, 0x7c, 0x12), RGBColor(0x9d, 0x12, 0x55)];

/// All others, in order; neither red nor orange.
const OTHERS: [RGBColor; 20] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0xe3, 0x77, 0xc2),
    RGBColor(0x7f, 0x7f, 0x7f),
    RGBColor(0xbc, 0xbd, 0x22),
    RGBColor(0x39, 0x3b, 0x79),
    RGBColor(0x63, 0x79, 0x39),
    RGBColor(0x7b, 0x41, 0x73),
    RGBColor(0x31, 0x82, 0xbd),
    RGBColor(0x00, 0x80, 0x80),
    RGBColor(0x8c, 0x6d, 0x31),
    RGBColor(0x52, 0x54, 0xa3),
    RGBColor(0x74, 0xc4, 0x76),
    RGBColor(0xa5, 0x51, 0x94),
    RGBColor(0x9e, 0xca, 0xe1),
    RGBColor(0x3c, 0x3c, 0x3c),
    RGBColor(0xc4, 0xa6, 0x00),
];

/// How a contestant looks in every figure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) color: RGBColor,
    pub(crate) is_ours: bool,
    /// Which of four shapes marks its points.
    pub(crate) shape: usize,
}

impl Look {
    /// The look goes by the place among ours or among the others, so it is that of all figures.
    pub(crate) fn of(results: &Results, contestant: &str) -> Self {
        let is_ours = results.is_ours(contestant);
        let before = &results.contestants[..results.place(contestant)];
        let place = before.iter().filter(|other| other.is_ours == is_ours).count();
        let color = if is_ours { OURS[place % OURS.len()] } else { OTHERS[place % OTHERS.len()] };
        Self { color, is_ours, shape: place % 4 }
    }

    /// Width of its lines.
    pub(crate) fn stroke(self) -> u32 {
        if self.is_ours { 4 } else { 2 }
    }

    /// Draws a mark.
    pub(crate) fn mark(self, area: &Area<'_>, (x, y): (i32, i32)) -> Drawn {
        let size = if self.is_ours { 5 } else { 4 };
        let fill = self.color.filled();
        match self.shape {
            0 => area.draw(&Circle::new((x, y), size, fill))?,
            1 => area.draw(&TriangleMarker::new((x, y), size + 2, fill))?,
            2 => area.draw(&Rectangle::new([(x - size, y - size), (x + size, y + size)], fill))?,
            _ => {
                let outline = PAPER.filled();
                area.draw(&Circle::new((x, y), size, outline))?;
                area.draw(&Circle::new((x, y), size, self.color.stroke_width(2)))?;
            }
        }
        Ok(())
    }
}

/// Makes an empty figure with a title, and has it drawn.
pub(crate) fn figure(
    path: &Path,
    height: i32,
    [title, below]: [&str; 2],
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Drawn {
    let size = (u32::try_from(WIDTH)?, u32::try_from(height)?);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&PAPER)?;
    area.draw(&Rectangle::new([(0, 0), (WIDTH - 1, height - 1)], FRAME))?;
    let mut bold = text(20, INK);
    bold.font = bold.font.style(FontStyle::Bold);
    area.draw(&Text::new(title.to_owned(), (20, 22), bold))?;
    area.draw(&Text::new(below.to_owned(), (20, 46), text(14, FAINT)))?;
    draw(&area)?;
    area.present()?;
    Ok(())
}

/// Text that begins at a point and is centred on its height.
pub(crate) fn text(size: i32, color: RGBColor) -> TextStyle<'static> {
    aligned(HPos::Left, size, color)
}

/// Text that ends, or is centred, at a point.
pub(crate) fn aligned(hpos: HPos, size: i32, color: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&color).pos(Pos::new(hpos, VPos::Center))
}

/// Text that is bold if it is about one of ours.
pub(crate) fn emphasised(is_ours: bool, style: TextStyle<'_>) -> TextStyle<'_> {
    if !is_ours {
        return style;
    }
    TextStyle { font: style.font.style(FontStyle::Bold), ..style }
}

/// Writes a contestant's name, with its mark and a line from where its curve ends.
pub(crate) fn name(
    area: &Area<'_>,
    end: (i32, i32),
    (left, height): (i32, i32),
    look: Look,
    label: String,
) -> Drawn {
    if end.0 < left {
        let leader = vec![(end.0 + 6, end.1), (left, height), (left + 6, height)];
        area.draw(&PathElement::new(leader, look.color.mix(0.5)))?;
    }
    look.mark(area, (left + 14, height))?;
    let style = emphasised(look.is_ours, text(13, look.color));
    area.draw(&Text::new(label, (left + 26, height), style))?;
    Ok(())
}

/// A number with as many digits as are worth reading.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size < 1e4 && size.fract() == 0.0 => format!("{value}"),
        size if size >= 1e12 => format!("{:.1}T", value / 1e12),
        size if size >= 1e9 => format!("{:.1}G", value / 1e9),
        size if size >= 1e7 => format!("{:.0}M", value / 1e6),
        size if size >= 1e6 => format!("{:.1}M", value / 1e6),
        size if size >= 1e5 => format!("{:.0}k", value / 1e3),
        size if size >= 1e4 => format!("{:.1}k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A whole power of ten, as a label of an axis.
pub(crate) fn power(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{}G", value / 1e9),
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e4 => format!("{}k", value / 1e3),
        value => format!("{value}"),
    }
}

/// Nanoseconds, as a label of an axis.
pub(crate) fn nanos(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{} s", value / 1e9),
        value if value >= 1e6 => format!("{} ms", value / 1e6),
        value if value >= 1e3 => format!("{} µs", value / 1e3),
        value => format!("{value} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_are_worth_reading() {
        let numbers = [0.0, 2.0, 0.004_2, 1.234, 12.34, 5_399.3, 19_730.0, 117_000.0, 3.154e7];
        let expected = ["0", "2", "0.0042", "1.23", "12.3", "5399", "19.7k", "117k", "32M"];
        assert_eq!(numbers.map(number), expected);
        assert_eq!([-0.79, -12.0].map(number), ["-0.79", "-12"]);
    }
}
