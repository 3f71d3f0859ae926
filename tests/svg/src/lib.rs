//! SVG text that grows. It knows nothing of what is drawn.

#![forbid(unsafe_code)]

use std::fmt::{Arguments, Write as _};

/// A picture that is being drawn.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

impl Svg {
    /// `style` is CSS.
    pub fn new(width: f64, height: f64, style: &str) -> Self {
        let mut svg = Self { text: String::new() };
        svg.line(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12">"#
        ));
        svg.line(format_args!("<style>{style}</style>"));
        svg
    }

    /// Adds an element.
    pub fn line(&mut self, line: Arguments<'_>) {
        // Writing into a String does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    /// Adds text whose baseline begins at this point.
    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escaped(text);
        self.line(format_args!(r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{text}</text>"#));
    }

    pub fn finished(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Text as content of an element.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_breaks_the_picture() {
        assert_eq!(escaped("a<b>&c"), "a&lt;b&gt;&amp;c");
    }
}
