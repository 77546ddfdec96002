//! A document with possible line breaks, and its layout within a width (after Wadler, "A prettier printer", 2003).
//!
//! A group is set on one line if it and what follows it up to the next possible break fit; otherwise its own breaks are
//! taken. A group with a comment or a hard break in it is always broken. Layout looks at most a line's width ahead for
//! each group, so it is linear in the size of the document.

/// A piece of text with possible line breaks.
#[derive(Debug)]
pub(super) enum Doc<'a> {
    Nil,
    Text(&'a str),
    /// A space, or a line break in a broken group.
    Line,
    /// Nothing, or a line break in a broken group.
    SoftLine,
    /// A line break.
    HardLine,
    /// A line break and an empty line.
    BlankLine,
    /// `// …` after code on a line, or on a line of its own. A line break follows whatever comes next.
    Comment {
        text: &'a str,
        own_line: bool,
    },
    Concat(Vec<Doc<'a>>),
    Indent(Box<Doc<'a>>),
    Group {
        doc: Box<Doc<'a>>,
        broken: bool,
    },
}

impl<'a> Doc<'a> {
    pub fn group(doc: Doc<'a>) -> Doc<'a> {
        Doc::Group { broken: doc.must_break(), doc: Box::new(doc) }
    }

    pub fn indent(doc: Doc<'a>) -> Doc<'a> {
        Doc::Indent(Box::new(doc))
    }

    pub fn is_nil(&self) -> bool {
        match self {
            Doc::Nil => true,
            Doc::Concat(docs) => docs.iter().all(Doc::is_nil),
            _ => false,
        }
    }

    /// Groups know the answer, so asking at each level of a tree reads each node once.
    fn must_break(&self) -> bool {
        match self {
            Doc::HardLine | Doc::BlankLine | Doc::Comment { .. } => true,
            Doc::Concat(docs) => docs.iter().any(Doc::must_break),
            Doc::Indent(doc) => doc.must_break(),
            Doc::Group { broken, .. } => *broken,
            Doc::Nil | Doc::Text(_) | Doc::Line | Doc::SoftLine => false,
        }
    }
}

/// Concatenation.
macro_rules! docs {
    ($($doc:expr),* $(,)?) => { crate::format::doc::Doc::Concat(vec![$($doc),*]) };
}
pub(super) use docs;

const INDENT: usize = 4;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Flat,
    Broken,
}

type Entry<'d, 'a> = (usize, Mode, &'d Doc<'a>);

/// A line of the result. The comment after its code is kept apart until comments are aligned.
struct Line<'a> {
    indent: usize,
    code: String,
    comment: Option<&'a str>,
}

/// Lays a document out. The result ends with one line break, unless it is empty.
pub(super) fn layout(doc: &Doc, width: usize) -> String {
    let mut lines = Lines { done: Vec::new(), line: Line::new(0), after_comment: false, width: 0 };
    let mut stack: Vec<Entry> = vec![(0, Mode::Broken, doc)];
    while let Some((indent, mode, doc)) = stack.pop() {
        match doc {
            Doc::Nil => {}
            Doc::Text(text) => lines.text(text, indent),
            Doc::Line if mode == Mode::Flat => lines.text(" ", indent),
            Doc::SoftLine if mode == Mode::Flat => {}
            Doc::Line | Doc::SoftLine | Doc::HardLine => lines.end(indent),
            Doc::BlankLine => lines.blank(indent),
            Doc::Comment { text, own_line } => lines.comment(text, *own_line, indent),
            Doc::Concat(docs) => stack.extend(docs.iter().rev().map(|doc| (indent, mode, doc))),
            Doc::Indent(doc) => stack.push((indent + INDENT, mode, doc)),
            Doc::Group { doc, broken } => {
                let flat = !broken && fits(&stack, (indent, Mode::Flat, doc), width.saturating_sub(lines.used(indent)));
                stack.push((indent, if flat { Mode::Flat } else { Mode::Broken }, doc));
            }
        }
    }
    lines.finish()
}

/// Whether `next` and what follows it up to the first possible break is at most `left` wide.
fn fits(rest: &[Entry], next: Entry, left: usize) -> bool {
    let mut left = left;
    let mut rest = rest.iter().rev();
    let mut stack = vec![next];
    while let Some((indent, mode, doc)) = stack.pop().or_else(|| rest.next().copied()) {
        let used = match doc {
            Doc::Text(text) => text.chars().take(left + 1).count(),
            Doc::Line if mode == Mode::Flat => 1,
            Doc::SoftLine if mode == Mode::Flat => 0,
            // Comments do not count: code is not broken because a comment is long.
            Doc::Line | Doc::SoftLine | Doc::HardLine | Doc::BlankLine | Doc::Comment { .. } => return true,
            Doc::Nil => 0,
            Doc::Concat(docs) => {
                stack.extend(docs.iter().rev().map(|doc| (indent, mode, doc)));
                0
            }
            // A group that follows may be broken if need be: it is read in the mode of what it stands in.
            Doc::Indent(doc) | Doc::Group { doc, .. } => {
                stack.push((indent, mode, doc));
                0
            }
        };
        if used > left {
            return false;
        }
        left -= used;
    }
    true
}

impl<'a> Line<'a> {
    fn new(indent: usize) -> Self {
        Line { indent, code: String::new(), comment: None }
    }

    fn is_empty(&self) -> bool {
        self.code.is_empty() && self.comment.is_none()
    }

    /// Closes what other lines opened, so it is not one of a paragraph's.
    fn is_closing(&self) -> bool {
        self.code.starts_with([')', ']', '}'])
    }
}

struct Lines<'a> {
    done: Vec<Line<'a>>,
    line: Line<'a>,
    /// The last thing written was a comment, so nothing may follow on its line.
    after_comment: bool,
    /// Of the current line's code.
    width: usize,
}

impl<'a> Lines<'a> {
    fn used(&self, indent: usize) -> usize {
        if self.line.is_empty() || self.after_comment { indent } else { self.line.indent + self.width }
    }

    fn text(&mut self, text: &str, indent: usize) {
        if self.after_comment {
            self.end(indent);
        }
        if self.line.code.is_empty() && text == " " {
            return;
        }
        self.line.code.push_str(text);
        self.width += text.chars().count();
    }

    /// Ends the line if there is anything on it.
    fn end(&mut self, indent: usize) {
        if !self.line.is_empty() {
            self.push_line();
        }
        self.line = Line::new(indent);
        self.after_comment = false;
        self.width = 0;
    }

    fn push_line(&mut self) {
        let mut line = std::mem::replace(&mut self.line, Line::new(0));
        line.code.truncate(line.code.trim_end().len());
        self.done.push(line);
    }

    fn blank(&mut self, indent: usize) {
        self.end(indent);
        if self.done.last().is_some_and(|line| !line.is_empty()) {
            self.done.push(Line::new(0));
        }
    }

    fn comment(&mut self, text: &'a str, own_line: bool, indent: usize) {
        if own_line || self.after_comment {
            self.end(indent);
        }
        if self.line.code.trim_end().is_empty() {
            self.line.code = text.to_string();
        } else {
            self.line.comment = Some(text);
        }
        self.after_comment = true;
    }

    fn finish(mut self) -> String {
        self.end(0);
        while self.done.last().is_some_and(Line::is_empty) {
            self.done.pop();
        }
        let columns = comment_columns(&self.done);
        let mut out = String::new();
        for (line, column) in self.done.iter().zip(columns) {
            if !line.code.is_empty() {
                out.extend(std::iter::repeat_n(' ', line.indent));
                out.push_str(&line.code);
            }
            if let Some(comment) = line.comment {
                let space = column - line.indent - line.code.chars().count();
                out.extend(std::iter::repeat_n(' ', space));
                out.push_str(comment);
            }
            out.push('\n');
        }
        out
    }
}

/// How much further than its own line a comment may be moved to stand below its neighbours.
const MAX_SHIFT: usize = 40;

/// The column of the comment on each line: within a paragraph, comments stand below each other. A paragraph is lines of one
/// indentation without an empty line between them.
fn comment_columns(lines: &[Line]) -> Vec<usize> {
    let mut columns = vec![0; lines.len()];
    let mut first = 0;
    while first < lines.len() {
        let (mut least, mut most) = (usize::MAX, 0);
        let mut end = first;
        while let Some(line) = lines.get(end).filter(|l| !l.is_empty() && l.indent == lines[first].indent) {
            if line.is_closing() && end > first {
                break;
            }
            if line.comment.is_some() {
                let own = line.indent + line.code.chars().count() + 1;
                if most.max(own) - least.min(own) > MAX_SHIFT {
                    break;
                }
                (least, most) = (least.min(own), most.max(own));
            }
            end += 1;
            if line.is_closing() {
                break;
            }
        }
        end = end.max(first + 1);
        columns[first..end].fill(most);
        first = end;
    }
    columns
}
