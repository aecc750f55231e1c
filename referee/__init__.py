"""Referee of engines: do the tokens that an engine emits follow the law of its target model?"""
