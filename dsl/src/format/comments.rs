//! The printer's state: the source, and the comments not printed yet. Lists are here too, because what is difficult about
//! them is their comments.

use super::doc::{Doc, docs};
use super::place::Place;
use crate::ast::{Ident, Span};
use crate::lex::Comment;

pub(super) struct Printer<'a> {
    source: &'a str,
    comments: &'a [Comment],
    next: usize,
}

/// What to do with line breaks between the items of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Breaks {
    /// Fill the lines.
    Reflow,
    /// Keep those of the source, and break what is too long.
    Keep,
}

impl<'a> Printer<'a> {
    pub fn new(source: &'a str, comments: &'a [Comment]) -> Self {
        Printer { source, comments, next: 0 }
    }

    pub fn slice(&self, span: Span) -> &'a str {
        &self.source[span.start as usize..span.end as usize]
    }

    /// The comments that stand before `at` and were not printed yet.
    pub fn flush(&mut self, at: u32) -> Doc<'a> {
        let mut docs = Vec::new();
        while let Some(comment) = self.take_comment(at) {
            docs.push(self.comment(comment));
        }
        if docs.is_empty() { Doc::Nil } else { Doc::Concat(docs) }
    }

    pub fn take_comment(&mut self, before: u32) -> Option<Comment> {
        let comment = *self.comments.get(self.next)?;
        if comment.span.start >= before {
            return None;
        }
        self.next += 1;
        Some(comment)
    }

    pub fn comment(&self, comment: Comment) -> Doc<'a> {
        Doc::Comment { text: self.slice(comment.span), own_line: comment.own_line }
    }

    /// A token of the source, after the comments before it.
    pub fn token(&mut self, span: Span) -> Doc<'a> {
        docs![self.flush(span.start), Doc::Text(self.slice(span))]
    }

    pub fn ident(&mut self, ident: &Ident) -> Doc<'a> {
        self.token(ident.span)
    }

    /// Whether an empty line precedes the text at `at`.
    pub fn blank_before(&self, at: u32) -> bool {
        let before = &self.source[..at as usize];
        let space = before.len() - before.trim_end().len();
        before[before.len() - space..].bytes().filter(|&b| b == b'\n').count() > 1
    }

    /// Whether the text at `at` is the first on its line.
    fn starts_line(&self, at: u32) -> bool {
        let before = &self.source[..at as usize];
        before[before.trim_end().len()..].contains('\n')
    }

    /// A list in brackets; `end` is where the closing one stands.
    pub fn list<T: Place>(
        &mut self,
        brackets: (&'static str, &'static str),
        end: u32,
        breaks: Breaks,
        items: &'a [T],
        print: impl FnMut(&mut Self, &'a T) -> Doc<'a>,
    ) -> Doc<'a> {
        let (open, close) = brackets;
        let Some(first) = items.first() else {
            let comments = self.flush(end);
            if comments.is_nil() {
                return docs![Doc::Text(open), Doc::Text(close)];
            }
            return docs![Doc::Text(open), Doc::indent(comments), Doc::HardLine, Doc::Text(close)];
        };
        let comments = self.flush(first.first_token());
        let filled = self.fill(Some(end), breaks, items, print);
        let inner = Doc::indent(docs![comments, Doc::SoftLine, filled]);
        Doc::group(docs![Doc::Text(open), inner, Doc::SoftLine, Doc::Text(close)])
    }

    /// Items with commas between them, as many on a line as fit. In brackets, the closing one stands at `end`, and comments
    /// before it belong to the list. No comma follows the last item: a filled line is edited anyway when one is added.
    pub fn fill<T: Place>(
        &mut self,
        end: Option<u32>,
        breaks: Breaks,
        items: &'a [T],
        mut print: impl FnMut(&mut Self, &'a T) -> Doc<'a>,
    ) -> Doc<'a> {
        let mut docs = Vec::new();
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                docs.push(Doc::Text(","));
            }
            let comments = self.flush(item.first_token());
            let kept = breaks == Breaks::Keep && self.starts_line(item.span().start);
            let own_line = kept || !comments.is_nil();
            docs.push(comments);
            let printed = print(self, item);
            docs.push(match i {
                0 => printed,
                _ if own_line => docs![Doc::HardLine, printed],
                _ => Doc::group(docs![Doc::Line, printed]),
            });
        }
        docs.extend(end.map(|end| self.flush(end)));
        Doc::Concat(docs)
    }
}
