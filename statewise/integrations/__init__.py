"""Statewise inside other libraries. A folder here needs the library it is named after, and the extra that brings it."""
