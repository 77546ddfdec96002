//! Text and numbers for pages.

pub use crate::output::grouped as grouped_by_thousands;

/// Text between tags or in an attribute.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON within a script element: nothing in it ends the element.
pub fn script(json: &str) -> String {
    json.replace('<', "\\u003c")
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Seconds in three digits behind the point.
pub fn seconds(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s if s > 0.0 => format!("{:.1} µs", s * 1e6),
        _ => "0".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_its_element() {
        assert_eq!(escaped("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
        let text = script("{\"name\":\"</script><script>\"}");
        assert!(!text.contains('<'));
        let back: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(back["name"], "</script><script>");
    }
}
