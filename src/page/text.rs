//! Text and numbers for pages.

pub use crate::output::{grouped as grouped_by_thousands, percent, seconds};

/// Text between tags or in an attribute.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// JSON within a script element: nothing in it ends the element.
pub fn script(json: &str) -> String {
    json.replace('<', "\\u003c")
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
