"""Models of CTranslate2."""
